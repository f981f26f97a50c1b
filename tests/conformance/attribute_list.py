# SPDX-License-Identifier: Apache-2.0
"""What tests/integration/attributes.c prints with and without the library, compared: a difference that
attribute_differences.txt does not list is one too many, and so is a listed one that is not seen."""
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "attribute_differences.txt")

# Stacks by name, in the words of the list.
STACKS = {
    "cuda": {"RMM_RESOURCE": "cuda"},
    "pool": {"RMM_POOL_SIZE": "512MiB"},
    "pool_wait": {"RMM_POOL_MAX_SIZE": "1GiB", "RMM_FREE": "wait"},
    "binning": {"RMM_POOL_SIZE": "512MiB", "RMM_BINNING": "1KiB-4MiB"},
    "arena": {"RMM_ARENA_SIZE": "1GiB"},
    "fixed_size": {"RMM_RESOURCE": "fixed_size(cuda, block_size=64MiB, blocks_to_preallocate=8)"},
    "async": {"RMM_ASYNC": "1"},
    "pool_async": {"RMM_ASYNC": "1", "RMM_POOL_SIZE": "512MiB"},
    "virtual": {"RMM_RESOURCE": "virtual(granularity=32MiB)"},
    "managed": {"RMM_MANAGED": "1"},
    "pool_managed": {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "512MiB"},
    "spilled_managed": {"RMM_RESOURCE": "fallback(limiting(cuda, limit=512), pool(managed))"},
    "spilled_pinned": {"RMM_RESOURCE": "fallback(limiting(cuda, limit=512), pool(pinned))"},
    "actual_managed": {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "512MiB", "RMM_MEMORY_TYPE": "actual"},
    "actual_pinned": {"RMM_RESOURCE": "fallback(limiting(cuda, limit=512), pool(pinned))",
                      "RMM_MEMORY_TYPE": "actual"},
    "pinned": {"RMM_PINNED_POOL_SIZE": "512MiB"},
    "managed_kind": {"RMM_MANAGED_POOL_SIZE": "512MiB"},
}
# The process's own memory, where the device reaches it.
PAGEABLE_STACKS = {
    "system": {"RMM_RESOURCE": "system"},
    "pool_system": {"RMM_RESOURCE": "pool(system)"},
    "actual_system": {"RMM_RESOURCE": "system", "RMM_MEMORY_TYPE": "actual"},
}


class Row:
    """DEVICE STACK KIND BYTES WHERE QUESTION: REASON; each field but the first a regular expression."""

    def __init__(self, text):
        fields, _, self.reason = text.partition(": ")
        words = fields.split()
        if len(words) != 6 or not self.reason.strip():
            raise ValueError("not six fields and a reason: %s" % text)
        self.device, self.text = words[0], fields
        self.patterns = [re.compile(word) for word in words[1:]]
        self.seen = set()  # the stacks where it explained a difference

    def fits(self, stack, line):
        fields = [stack] + line
        return all(pattern.fullmatch(field) for pattern, field in zip(self.patterns, fields))

    def unseen(self, stacks):
        return [stack for stack in stacks if self.patterns[0].fullmatch(stack) and stack not in self.seen]


def read_list(device):
    """The rows for a device: host, gpu."""
    with open(LIST, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    rows = [Row(line) for line in lines if line and not line.startswith("#")]
    return [row for row in rows if row.device in (device, "both")]


def answers(text):
    """[(four words: kind, bytes, where, question), answer] of each line."""
    found = []
    for line in text.splitlines():
        words = line.split(" ", 4)
        if len(words) != 5:
            raise ValueError("not an answer: %s" % line)
        found.append((words[:4], words[4]))
    return found


def collapsed(title, cases, asked):
    """One line for each kind of difference: [(kind, bytes, where, question, text)] that differ in kind and bytes
    alone are told together.  Sizes are told where they are not all that were asked about, kinds likewise."""
    sizes, together = {}, {}
    for (kind, size, _, _), _ in asked:
        sizes.setdefault(kind, set()).add(size)
    for kind, size, where, question, text in cases:
        together.setdefault((where, question, text), {}).setdefault(kind, []).append(size)
    lines = []
    for (where, question, text), kinds in together.items():
        blocks = [kind if len(some) == len(sizes[kind]) else "%s %s" % (kind, ",".join(some))
                  for kind, some in kinds.items()]
        lines.append("%s %s %s: %s (%s)" % (title, where, question, text,
                                            "all" if blocks == list(sizes) else "; ".join(blocks)))
    return lines


def differences(rows, stack, plain, served):
    """Those that no row explains, and those that one does, as lines (collapsed()); marks the rows that do."""
    left, listed = [], []
    before, after = answers(plain), answers(served)
    if [words for words, _ in before] != [words for words, _ in after]:
        return ["%s: other questions: the program went another way" % stack], []
    for (words, old), (_, new) in zip(before, after):
        if old == new:
            continue
        fitting = [row for row in rows if row.fits(stack, words)]
        for row in fitting:
            row.seen.add(stack)
        (listed if fitting else left).append((*words, "%s, with the library %s" % (old, new)))
    return collapsed(stack, left, before), collapsed(stack, listed, before)


def unlisted(rows, stack, plain, served):
    return differences(rows, stack, plain, served)[0]


def told(text):
    """Everything that a run answered, in few lines: what a model of the driver can be held against."""
    asked = answers(text)
    return collapsed("by itself", [(*words, answer) for words, answer in asked], asked)


def unseen(rows, stacks):
    """Rows that explained nothing about a stack of theirs."""
    return ["listed, but not so for %s: %s" % (stack, row.text) for row in rows for stack in row.unseen(stacks)]
