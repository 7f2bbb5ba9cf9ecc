//! Rate-limited logging of failures to accept a connection.
//!
//! While the process is out of file descriptors, accept fails twenty times a second. The log
//! reports the first failure in a minute, and how many there were since the last report.

use std::time::{Duration, Instant};

/// Minimum interval between reports.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// The failures of one listener.
#[derive(Debug, Default)]
pub(super) struct AcceptErrors {
    reported: Option<Instant>,
    unreported: u64,
}

impl AcceptErrors {
    /// Counts a failure. `Some(n)`: report it, along with `n` failures since the last report.
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
    fn a_lasting_accept_error_is_logged_once_a_minute() {
        let begin = Instant::now();
        let mut errors = AcceptErrors::default();
        let reports: Vec<u64> = (0..2401)
            .filter_map(|i| errors.report(begin + Duration::from_millis(50) * i))
            .collect();
        assert_eq!(reports, [0, 1199, 1199]);
    }
}
