"""What is done to torch tensors around the timing; the same on every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .device import Difference

__all__ = ["TorchTensors"]

# Columns of the checksum; prime, so that rows of a power of two do not fall on the same column again and again.
_COLUMNS = 1021
_CHUNK = 1 << 26


class TorchTensors:
    """The tensor half of harness.timing.device.Device."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def is_plain(self, value: Any) -> bool:
        import torch  # noqa: PLC0415

        return type(value) in {torch.Tensor, torch.nn.Parameter} and value.device.type == self._kind and not value.is_sparse

    @staticmethod
    def dtype(tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    @staticmethod
    def poison(tensors: Sequence[Any]) -> None:
        import torch  # noqa: PLC0415

        for one in tensors:
            if one.dtype.is_floating_point and one.dtype.itemsize > 1:
                one.fill_(float("nan"))
            elif one.dtype.is_floating_point:
                # All bits set is NaN in e4m3 and e5m2; not every build fills these types.
                one.view(torch.uint8).fill_(0xFF)
            else:
                one.fill_(1 if one.dtype is torch.bool else torch.iinfo(one.dtype).max)

    @staticmethod
    def difference(output: Any, reference: Any) -> Difference:
        if output.shape != reference.shape:
            return Difference(float("nan"), float("nan"))
        rows = output.shape[0] if output.dim() > 1 else 1
        out, ref = output.reshape(rows, -1), reference.reshape(rows, -1)
        wrong, right = [], []
        step = max(1, _CHUNK // max(1, out.shape[1]))
        for start in range(0, rows, step):
            a, b = out[start : start + step].double(), ref[start : start + step].double()
            # Equal infinities (a log-sum-exp of nothing) do not differ, and say nothing about the scale.
            same = a == b
            wrong.append(a.sub(b).masked_fill_(same, 0.0).square_().sum(1))
            right.append(b.masked_fill(b.isinf(), 0.0).square_().sum(1))
        import torch  # noqa: PLC0415

        missed, scale = torch.cat(wrong), torch.cat(right)
        tiny = 1e-30
        overall = (missed.sum() / scale.sum().clamp_min(tiny)).sqrt()
        # A row that is close to zero is measured against the tensor's mean row, not against nothing.
        worst = (missed / scale.clamp_min(tiny).maximum(scale.mean() * 1e-2)).max().sqrt()
        both = torch.stack([overall, worst]).tolist()
        return Difference(both[0], both[1])

    @staticmethod
    def unwritten(tensors: Sequence[Any]) -> int:
        import torch  # noqa: PLC0415

        floats = [one for one in tensors if one.dtype.is_floating_point]
        if not floats:
            return 0
        wide = (one if one.dtype.itemsize > 1 else one.float() for one in floats)
        return int(torch.stack([one.isnan().any() for one in wide]).sum())

    @staticmethod
    def fingerprints(tensors: Sequence[Any]) -> tuple[int, ...]:
        """Sums of the words over columns and over rows, both weighted by place, in 64-bit arithmetic that wraps."""
        import torch  # noqa: PLC0415

        if not tensors:
            return ()
        found = []
        for one in tensors:
            flat = _words(one)
            weights = torch.arange(1, _COLUMNS + 1, dtype=torch.int64, device=one.device)
            whole = flat.numel() - flat.numel() % _COLUMNS
            total = (flat[whole:].to(torch.int64) * weights[: flat.numel() - whole]).sum()
            if whole:
                table = flat[:whole].view(-1, _COLUMNS)
                rows = torch.arange(1, table.shape[0] + 1, dtype=torch.int64, device=one.device)
                total = total + (table.sum(0, dtype=torch.int64) * weights).sum()
                total = total + 3 * (table.sum(1, dtype=torch.int64) * rows).sum()
            found.append(total)
        return tuple(int(one) for one in torch.stack(found).tolist())

    @staticmethod
    def shift(tensor: Any, by: int) -> None:
        flat = _words(tensor)
        if flat.data_ptr() != tensor.data_ptr():
            raise ValueError(
                f"an input of shape {tuple(tensor.shape)} and strides {tensor.stride()} has gaps, so it cannot be fresh"
            )
        flat.copy_(flat.roll(by))


def _words(tensor: Any) -> Any:
    """The tensor's memory as one row of integers; a copy for a view with gaps, such as the keys of an interleaved cache."""
    import torch  # noqa: PLC0415

    if not tensor.is_contiguous():
        # Axes in the order of memory: a transposed view then needs no copy.
        tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis)))
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.reshape(-1)
    return flat if flat.dtype in words.values() else flat.view(words[flat.dtype.itemsize])
