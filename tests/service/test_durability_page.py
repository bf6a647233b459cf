"""The commands of the page on durability back up a running state and restore it."""

import re
import subprocess
from pathlib import Path

from truing.service.store import Store

from .streams import bits, learn, opened, replayed

PAGE = Path(__file__).parent.parent.parent / "docs" / "durability.md"


def test_the_commands_of_the_page_back_up_a_running_state_and_restore_it(tmp_path):
    back_up, restore = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    engine = opened(tmp_path / "state")
    for names in ("ab", "cd", "ef"):
        for name in names:
            learn(engine, name)
        engine.snapshot().result(60)
    subprocess.run(["sh", "-ec", back_up], cwd=tmp_path, check=True)
    learn(engine, "later")
    engine.close()
    subprocess.run(["sh", "-ec", restore], cwd=tmp_path, check=True)
    store = Store(tmp_path / "restored")
    assert bits(store.contents.detector) == bits(replayed([*"abcdef"]))
    assert list(store.recent) == [*"abcdef"]
    store.close()
