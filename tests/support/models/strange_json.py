"""Draw JSON documents of strangers: any values, or a real document with some of them changed."""

import contextlib
import copy

from hypothesis import strategies as st

# What a strange writer, or an attacker, puts in the place of a value.
odd = st.sampled_from(
    [None, True, -1, 0, 2**31, 2**32 - 1, 10**9, 10**30, -(10**400), 1e300, float("nan"), "", ".",
     "..", "../x", "/etc/passwd", "a\0b", "\ud800", "x" * 5000, "C:\\x", "[CLS]", "+", "mean+cls",
     "de", {}, [], [[]], {"": ""}, {"\ud800": 1}, {"a": {"b": None}}]
)  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(document, at=()):
    """Where the values of a document are; of a long list or object, the first ones."""
    yield at
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items)[:40]:
        here = (*at, key)
        yield from places(value, here) if isinstance(value, dict | list) else [here]


def changed(document):
    """Documents like this one, but for one to three values that are replaced, removed or added."""
    every = sorted(places(document), key=len)
    highest = [at for at in every if len(at) == 1] or every
    change = st.tuples(
        st.sampled_from(highest) | st.sampled_from(every),
        st.sampled_from(["replace", "remove", "add"]),
        odd | anything,
    )
    return st.lists(change, min_size=1, max_size=3).map(lambda made: apply(document, made))


def apply(document, changes):
    document = copy.deepcopy(document)
    for at, what, drawn in changes:
        value = copy.deepcopy(drawn)  # later changes may be inside of it
        with contextlib.suppress(KeyError, IndexError, TypeError):  # gone by an earlier change
            if not at:
                document = value if what == "replace" else document
                continue
            holder = document
            for key in at[:-1]:
                holder = holder[key]
            if what == "remove":
                del holder[at[-1]]
            elif what == "add" and isinstance(holder, list):
                holder.append(value)
            else:
                holder["added" if what == "add" else at[-1]] = value
    return document
