"""How fast truing is: one script per question. See README.md."""
