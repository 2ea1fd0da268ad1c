"""The emulated card of the fifth round (fifth/card.py). SOURCES is a checkout of the repository (default: the one that this folder lies in)."""
import importlib.util, os
from pathlib import Path

SOURCES = Path(os.environ.get("SOURCES") or Path(__file__).resolve().parents[4])
os.environ["SOURCES"] = str(SOURCES)
found = importlib.util.spec_from_file_location("fifth_card", SOURCES / "tests/engines/blind/fifth/card.py")
fifth = importlib.util.module_from_spec(found)
found.loader.exec_module(fifth)
make, environment, sources = fifth.make, fifth.environment, fifth.sources
