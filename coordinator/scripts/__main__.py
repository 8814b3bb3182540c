"""`python -m coordinator.scripts NAME` prints a script expanded, with line numbers; `--check` checks them all."""

import re
import sys

from coordinator.scripts import PARAMETER, Script, load, names


def problems(script: Script) -> list[str]:
    """What is wrong with a script's form: its first line, its header, its numbering."""
    found = []
    if not re.match(r"#!lua( flags=[a-z-]+(,[a-z-]+)*)?\n", script.text):
        found.append("the first line must be `#!lua` with its flags")
    if "\n-- -> {'" not in script.text:
        found.append("the header must list the replies as `-- -> {'word', ...}`")
    for table in ("KEYS", "ARGV"):
        numbers = [int(number) for kind, number, _, _ in PARAMETER.findall(script.text) if kind == table]
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(f"{table} must be numbered 1, 2, 3, ... in the header")
    listed = set(re.findall(r"^-- -> \{'(\w+)'", script.text, re.MULTILINE))
    body = script.text[script.text.index("\n\n") :]
    said = {first or second for first, second in re.findall(r"(?:return|and|or) \{'(\w+)'|refused\('(\w+)'", body)}
    found += [f"reply '{word}' is not in the header" for word in sorted(said - listed)]
    if re.search(r"\bcjson|math\.random|os\.|cmsgpack", body):
        found.append("bodies are opaque and chance is the caller's: no cjson, cmsgpack, math.random")
    return found


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if arguments == ["--check"]:
        found = [f"lua/{name}.lua: {problem}" for name in names() for problem in problems(load(name))]
        print("\n".join(found) or f"{len(names())} scripts are in form")
        return 1 if found else 0
    if len(arguments) != 1 or arguments[0] not in names():
        print(f"usage: python -m coordinator.scripts --check | {' | '.join(names())}", file=sys.stderr)
        return 2
    for number, line in enumerate(load(arguments[0]).text.splitlines(), 1):
        print(f"{number:4}  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
