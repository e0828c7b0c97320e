"""Read what the compiler made of the CUDA kernels, and refuse what would cost speed.

    python tests/support/compiled/cuda_disassembly.py OBJECT ...

OBJECT is an object file of nvcc. For every kernel on tiles this prints, for each architecture: the
tensor instructions, all instructions and the copies of a stage of the main loop, for a warp; what
follows the loops (the epilogue); and whether a loop uses local memory. What exceeds its limits goes
to the standard error, and the exit status is 1. It needs cuobjdump and nvdisasm on the path, which
the CUDA toolkit has, and the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_CODE = re.compile(r"code for (sm_\w+)")
_FUNCTION = re.compile(r"Function : (\w+)")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][A-Z0-9_.]*)([^;]*);")
_TARGET = re.compile(r"0x([0-9a-f]+)")
_NAME = re.compile(r"mirror_train\d+(tma_)?(\w+?_tiles)I(.*)E")

# Scores of a 128 x 128 tile that one of 256 threads has: so many exponentials take one an element.
_ELEMENTS = 64
# Exchanges for the sums of the rows and columns of so many scores of a thread.
_EXCHANGES = 30
# The most instructions of a stage for a warp, of rows in one part and in two.
STAGE_LIMITS = {"mma": (130, 210), "mma 64 x 64": (200, 0), "tma": (90, 160)}
_PRODUCTS = 4  # those of a stage of the tma core
_NEEDED = {
    "tma": {
        "UTMALDG": "nothing is loaded by the tensor memory accelerator",
        "USETMAXREG": "the registers stay with the producer",
    }
}


class Instruction(NamedTuple):
    """An instruction: its address, its opcode with modifiers, and its operands."""

    address: int
    opcode: str
    operands: str


@dataclass
class Kernel:
    """A kernel on tiles, for one architecture."""

    architecture: str
    fed_by_tma: bool
    name: str
    parameters: str
    code: list[Instruction] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The name with the template's arguments."""
        parts = f"{self.parts} part{'s' * (self.parts > 1)}"
        return f"{self.name}, {self.core}, {parts}" + ("" if self.bounded else ", any scores")

    @property
    def core(self) -> str:
        """The name of the core."""
        if self.fed_by_tma:
            return "tma"
        if "MmaCoreILi2E" in self.parameters:
            return "mma 64 x 64"
        return "mma"

    @property
    def shares(self) -> int:
        """How many times _ELEMENTS scores a thread has."""
        two_tiles = self.core == "tma" and self.parts == 1
        return 2 if two_tiles or self.core == "mma 64 x 64" else 1

    @property
    def is_empty(self) -> bool:
        """Whether the kernel is not for this architecture; see MmaCore::kUsed."""
        on_turing = self.architecture == "sm_75"
        narrow = self.core == "mma" and self.parts == 1
        return (narrow and not on_turing) or (self.core == "mma 64 x 64" and on_turing)

    @property
    def parts(self) -> int:
        """The number of fp16 parts of an element."""
        return 2 if "Lb1E" in self.parameters else 1

    @property
    def bounded(self) -> bool:
        """Whether the kernel is for bounded scores; that which has no scores counts as such."""
        return not any(name in self.parameters for name in ("OnlineSum", "AnyWeight"))

    def loops(self) -> list[list[Instruction]]:
        """Return the instructions of each loop, from the target of a backward branch to it."""
        found = []
        for at in self.code:
            target = _TARGET.search(at.operands) if at.opcode.startswith("BRA") else None
            if target and int(target[1], 16) < at.address:
                start = int(target[1], 16)
                found.append([i for i in self.code if start <= i.address <= at.address])
        return found

    def main_loops(self) -> list[list[Instruction]]:
        """Return the loops with products that have no such loop within.

        A branch back into a loop from behind it is none: it leads from waiting to what is awaited.
        """
        loops = [loop for loop in self.loops() if any(is_product(i) for i in loop)]
        return [
            loop
            for loop in loops
            if not any(
                other is not loop and (within(other, loop) or enters(loop, other))
                for other in loops
            )
        ]

    def epilogue(self) -> Counter[str]:
        """Return how often each opcode comes after the last product.

        Without what is there for lanes that have parted, behind all else: they never do.
        """
        last = max((i.address for loop in self.main_loops() for i in loop), default=0)
        after = [i for i in self.code if i.address > last]
        parted = (n for n, i in enumerate(after) if i.opcode.startswith("WARPSYNC.COLLECTIVE"))
        return Counter(i.opcode for i in after[: next(parted, None)])


def is_product(instruction: Instruction) -> bool:
    return instruction.opcode.startswith(("HGMMA", "HMMA"))


def within(inner: list[Instruction], outer: list[Instruction]) -> bool:
    return outer[0].address <= inner[0].address and inner[-1].address <= outer[-1].address


def enters(later: list[Instruction], loop: list[Instruction]) -> bool:
    """Return whether `later` begins within `loop` and ends behind it."""
    return loop[0].address < later[0].address <= loop[-1].address < later[-1].address


def count(code: list[Instruction], prefix: str) -> int:
    return sum(i.opcode.startswith(prefix) for i in code)


def stages_of(kernel: Kernel, loop: list[Instruction]) -> int:
    """Return how many stages a loop has: the compiler unrolls it, and each has one barrier."""
    if kernel.core == "tma":
        return max(1, count(loop, "HGMMA") // _PRODUCTS)
    return max(1, count(loop, "BAR"))


def read_kernels(disassembly: str) -> Iterator[Kernel]:
    """Yield the kernels on tiles in the output of `cuobjdump -sass`."""
    architecture, kernel = "", None
    for line in disassembly.splitlines():
        if found := _CODE.search(line):
            architecture = found[1]
        elif found := _FUNCTION.search(line):
            if kernel is not None:
                yield kernel
            name = _NAME.search(found[1])
            kernel = Kernel(architecture, bool(name[1]), name[2], name[3]) if name else None
        elif kernel is not None and (found := _INSTRUCTION.search(line)):
            kernel.code.append(Instruction(int(found[1], 16), found[2], found[3]))
    if kernel is not None:
        yield kernel


def faults(kernel: Kernel) -> Iterator[str]:
    """Yield what is wrong with the code of a kernel."""
    loops = kernel.main_loops()
    if kernel.is_empty:
        if loops:
            yield "code that nothing calls"
        return
    expected = 2 if kernel.name == "accumulate_tiles" else 1
    if len(loops) != expected:
        yield f"{len(loops)} main loops, not {expected}"
    if kernel.core == "tma" and not all(count(loop, "HGMMA") for loop in loops):
        yield "a main loop without HGMMA"
    for opcode, what in _NEEDED.get(kernel.core, {}).items():
        if not count(kernel.code, opcode):
            yield f"no {opcode}: {what}"
    most = STAGE_LIMITS[kernel.core][kernel.parts - 1]
    if any(len(loop) / stages_of(kernel, loop) > most for loop in loops):
        yield f"more than {most} instructions a stage"
    if any(count(loop, "LDL") + count(loop, "STL") for loop in kernel.loops()):
        yield "local memory in a loop"
    after = kernel.epilogue()
    exponentials = sum(n for opcode, n in after.items() if opcode.startswith("MUFU.EX2"))
    elements = _ELEMENTS * kernel.shares
    if exponentials > elements and kernel.bounded:
        yield f"{exponentials} exponentials for {elements} elements"
    exchanges = sum(n for opcode, n in after.items() if opcode.startswith("SHFL"))
    enough = _EXCHANGES * kernel.shares
    if exchanges > enough and kernel.bounded:
        yield f"{exchanges} exchanges between lanes, and {enough} are enough"


def describe(kernel: Kernel) -> str:
    """Return a line of the table."""
    stages = [
        f"{len(loop) / n:.0f} ({count(loop, 'HGMMA') / n:.0f} HGMMA, {count(loop, 'HMMA') / n:.0f} "
        f"HMMA, {count(loop, 'LDGSTS') / n:.0f} copies)"
        for loop in kernel.main_loops()
        if (n := stages_of(kernel, loop))
    ]
    after = kernel.epilogue()
    kinds = ("MUFU.EX2", "SHFL", "FMNMX", "FADD", "FMUL", "FFMA", "FSEL", "MUFU")
    told = ", ".join(f"{sum(n for op, n in after.items() if op.startswith(kind))} {kind}"
                     for kind in kinds)  # fmt: skip
    stage = "; ".join(stages)
    return f"{kernel.architecture:7} {kernel.label:44} stage {stage}  after {after.total()}: {told}"


def main() -> None:
    failed = False
    for path in sys.argv[1:]:
        command = ["cuobjdump", "-sass", path]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for kernel in read_kernels(done.stdout):
            if not kernel.is_empty:
                sys.stdout.write(f"{describe(kernel)}\n")
            for fault in faults(kernel):
                failed = True
                sys.stderr.write(f"{kernel.architecture} {kernel.label}: {fault}\n")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
