from pathlib import Path

import pytest

from tests.search.campaign.working import MARKS


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for marks of work functions."""
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv(MARKS, str(folder))
    return folder
