"""The experiments: settings and cases as values, run on outputs files, recorded as rows."""
