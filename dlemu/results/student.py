"""Student's distribution: how far a mean of few values may be off."""

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def t95(freedom: float) -> float:
    """Return Student's two-sided 95 % quantile, for whole degrees of freedom below."""
    return _T95[max(1, int(min(freedom, len(_T95)))) - 1]
