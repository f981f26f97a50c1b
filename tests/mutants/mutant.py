# SPDX-License-Identifier: Apache-2.0
"""A mutant: one broken rule, and where in the tree it is broken.

A file NAME.mutant says in its first line which rule no longer holds, and then, as often as needed:

  file: src/...         a source
  function: name        a function that it defines
  replace: tokens       what stands there once
  with: tokens          what stands there instead; nothing: it is taken out

A `function` stays for the `replace`s that follow, a `file` for the `function`s.  A line that begins with a blank goes
on with the line before.  White space, line breaks and comments do not count, so that a mutant finds its place whatever
the layout, and wherever in the file its function went.
"""
import pathlib
import re

KEYS = ("file", "function", "replace", "with")
TOKEN = re.compile(r"""
    (?P<skip>\s+ | //[^\n]* | /\*.*?\*/ | \#(?:\\\n|[^\n])*)
  | (?P<token>"(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | [^\W\d]\w* | \d[\w.]*
      | <<=|>>=|\.\.\.|->|\+\+|--|<<|>>|&&|\|\||[-+*/%&|^=!<>]=|.)
""", re.DOTALL | re.VERBOSE)
OPENERS = {"(": ")", "[": "]", "{": "}"}


class Lost(Exception):
    """A mutant that does not find its place, or says nothing that can be done."""


def tokens_of(text):
    """Each token with where it begins and ends; directives of the preprocessor are none."""
    return [(match["token"], match.start(), match.end())
            for match in TOKEN.finditer(text) if match["token"] is not None]


def closing(tokens, at):
    """The index of what closes the bracket at `at`."""
    opener, depth = tokens[at][0], 0
    for index in range(at, len(tokens)):
        depth += (tokens[index][0] == opener) - (tokens[index][0] == OPENERS[opener])
        if depth == 0:
            return index
    raise Lost("a bracket that nothing closes")


def bodies(tokens):
    """Each function that is defined: the index of its name, and those of the braces around its body."""
    index = 0
    while index < len(tokens):
        if tokens[index][0] == "(":
            after = closing(tokens, index) + 1
            if index and after < len(tokens) and tokens[after][0] == "{":
                yield index - 1, after, closing(tokens, after)
        index = closing(tokens, index) + 1 if tokens[index][0] in OPENERS else index + 1


def body_of(tokens, name):
    """The indexes of the braces around the body of a function, or None."""
    found = [(first, last) for at, first, last in bodies(tokens) if tokens[at][0] == name]
    if len(found) > 1:
        raise Lost("two functions %s" % name)
    return found[0] if found else None


def replace_once(text, function, old, new):
    tokens = tokens_of(text)
    body = body_of(tokens, function)
    if not body:
        raise Lost("no function %s" % function)
    sought = [word for word, _, _ in tokens_of(old)]
    places = [at for at in range(body[0], body[1] + 2 - len(sought))
              if [word for word, _, _ in tokens[at:at + len(sought)]] == sought]
    if len(places) != 1:
        raise Lost("%s has %d places with: %s" % (function, len(places), " ".join(old.split())))
    first, last = tokens[places[0]], tokens[places[0] + len(sought) - 1]
    # What follows keeps its line, which assertions name.
    lines = text.count("\n", first[1], last[2]) - new.count("\n")
    return text[:first[1]] + new + "\n" * lines + text[last[2]:]


class Mutant:
    def __init__(self, path):
        self.name = path.stem
        lines = path.read_text(encoding="utf-8").splitlines()
        self.rule = lines[0] if lines else ""
        self.edits = []  # file, function, replace, with
        self._read(lines[1:])
        if not self.rule.endswith(".") or not self.edits:
            raise Lost("%s: a sentence comes first, then file, function, replace, with" % path.name)

    def _read(self, lines):
        said = []
        for number, line in enumerate(lines, 2):
            key, colon, value = line.partition(":")
            if line[:1].isspace() and said:
                said[-1][1] += "\n" + line
            elif colon and key in KEYS:
                said.append([key, value.strip(), number])
            else:
                raise Lost("%s.mutant:%d: none of %s" % (self.name, number, ", ".join(KEYS)))
        now = {}
        for key, value, number in said:
            now[key] = value
            if key == "with":
                if not all(now.get(before) for before in KEYS[:3]):
                    raise Lost("%s.mutant:%d: no file, function and replace before this" % (self.name, number))
                self.edits.append((now["file"], now["function"], now.pop("replace"), value))
        if "replace" in now:
            raise Lost("%s.mutant: a replace without a with" % self.name)

    def apply(self, tree):
        """The changed sources, as {path: text}; nothing is written."""
        changed = {}
        for file, function, old, new in self.edits:
            try:
                if file not in changed:
                    changed[file] = (pathlib.Path(tree) / file).read_text(encoding="utf-8")
                changed[file] = replace_once(changed[file], function, old, new)
            except FileNotFoundError:
                raise Lost("%s: there is no %s" % (self.name, file)) from None
            except Lost as lost:
                raise Lost("%s: %s: %s" % (self.name, file, lost)) from None
        return changed


def read_all(folder, names=None):
    """The mutants of a folder, of these names or all, and what is wrong with the rest."""
    mutants, wrong = [], []
    for path in sorted(pathlib.Path(folder).glob("*.mutant")):
        if not names or path.stem in names:
            try:
                mutants.append(Mutant(path))
            except Lost as lost:
                wrong.append(str(lost))
    return mutants, wrong
