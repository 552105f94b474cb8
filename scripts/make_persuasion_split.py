"""Make `split.json` of the persuasion environment from a corpus folder (ids only go into the package).

    python scripts/make_persuasion_split.py CORPUS_FOLDER

The result is a pure function of the corpus; running it again on the published corpus changes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from unfrozen.core.episodes import SPLITS
from unfrozen.environments.persuasion import split as rules
from unfrozen.environments.persuasion.corpus import load_corpus

TARGET = Path(rules.__file__).with_name("split.json")


def main(folder: str) -> None:
    """Write the split and print its sizes and balance."""
    dialogues = load_corpus(Path(folder))
    split = rules.make_split(dialogues)
    rules.check_no_crossing(dialogues, split)
    by_split = {name: sorted(id for id, place in split.items() if place == name) for name in SPLITS}
    TARGET.write_text(json.dumps(by_split, indent=0) + "\n", encoding="utf-8")
    component = rules.components(dialogues)
    for name in SPLITS:
        inside = [dialogue for dialogue in dialogues if split[dialogue.id] == name]
        groups = {component[dialogue.id] for dialogue in inside}
        rate = sum(dialogue.donated for dialogue in inside) / max(len(inside), 1)
        print(f"{name}: {len(inside)} dialogues in {len(groups)} components, {rate:.1%} donated")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/make_persuasion_split.py CORPUS_FOLDER")
    main(sys.argv[1])
