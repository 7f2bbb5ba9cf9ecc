//! Failures to accept a connection: the log says the first of a minute, and how many more there were.
//!
//! While the process has no file descriptor left, each attempt fails, twenty times a second.

use std::time::{Duration, Instant};

/// How often the log says it.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// The failures of one listener.
#[derive(Debug, Default)]
pub(super) struct AcceptErrors {
    reported: Option<Instant>,
    unreported: u64,
}

impl AcceptErrors {
    /// Notes a failure. `Some`: the log is to say it, and that there were so many more since it last did.
    pub(super) fn report(&mut self, now: Instant) -> Option<u64> {
        if self.reported.is_some_and(|at| now.duration_since(at) < REPORT_EVERY) {
            self.unreported += 1;
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_lasts_is_reported_once_a_minute() {
        let begin = Instant::now();
        let mut errors = AcceptErrors::default();
        let reports: Vec<u64> = (0..2401)
            .filter_map(|i| errors.report(begin + Duration::from_millis(50) * i))
            .collect();
        assert_eq!(reports, [0, 1199, 1199]);
    }
}
