//! Percentiles from a histogram of durations.

/// The percentiles of an operation's durations. A histogram knows only in which bucket a duration lies,
/// so a percentile is the upper bound of its bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Latency {
    /// Half of the executions took up to this.
    pub(in super::super) p50: Duration,
    /// 99 of 100 took up to this.
    pub(in super::super) p99: Duration,
}

/// A percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Duration {
    /// There were no executions.
    #[default]
    None,
    /// Up to so many microseconds.
    UpTo(u64),
    /// More than so many microseconds.
    Over(u64),
}

impl Latency {
    /// The percentiles of `buckets`, of which all but the last have an upper bound.
    pub(super) fn of(buckets: &[u64], bounds_us: &[u64]) -> Self {
        Self { p50: percentile(buckets, bounds_us, 50), p99: percentile(buckets, bounds_us, 99) }
    }
}

fn percentile(buckets: &[u64], bounds_us: &[u64], percent: u64) -> Duration {
    let all: u64 = buckets.iter().sum();
    if all == 0 {
        return Duration::None;
    }
    let enough = (u128::from(all) * u128::from(percent)).div_ceil(100) as u64;
    let mut so_far = 0;
    for (count, &bound) in buckets.iter().zip(bounds_us) {
        so_far += count;
        if so_far >= enough {
            return Duration::UpTo(bound);
        }
    }
    Duration::Over(bounds_us.last().copied().unwrap_or(0))
}

impl Duration {
    /// The upper bound, if there is one.
    pub(in super::super) fn up_to_us(self) -> Option<u64> {
        match self {
            Self::UpTo(us) => Some(us),
            Self::None | Self::Over(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [u64; 3] = [10, 100, 1000];

    #[test]
    fn a_percentile_is_the_bound_of_its_bucket() {
        let of = |buckets: [u64; 4]| {
            let Latency { p50, p99 } = Latency::of(&buckets, &BOUNDS);
            (p50, p99)
        };
        assert_eq!(of([0; 4]), (Duration::None, Duration::None));
        assert_eq!(of([1, 0, 0, 0]), (Duration::UpTo(10), Duration::UpTo(10)));
        assert_eq!(of([1, 1, 0, 0]), (Duration::UpTo(10), Duration::UpTo(100)));
        assert_eq!(of([0, 99, 0, 1]), (Duration::UpTo(100), Duration::UpTo(100)));
        assert_eq!(of([0, 98, 0, 2]), (Duration::UpTo(100), Duration::Over(1000)));
        assert_eq!(of([0, 0, 0, u32::MAX.into()]), (Duration::Over(1000), Duration::Over(1000)));
    }

    #[test]
    fn slower_is_greater() {
        assert!(Duration::None < Duration::UpTo(10));
        assert!(Duration::UpTo(10) < Duration::UpTo(100));
        assert!(Duration::UpTo(1000) < Duration::Over(1000));
    }
}
