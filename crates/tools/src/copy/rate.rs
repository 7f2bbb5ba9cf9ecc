//! A bound on the rate at which data moves.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Longest wait of one call: bounds what a rate of a few bytes per second can do to a copy.
const LONGEST: Duration = Duration::from_secs(3600);

/// Bytes per second, shared by all files of a copy.
pub(crate) struct Rate {
    bytes_per_second: Option<u64>,
    /// When the bytes that were admitted so far have passed.
    passed: Mutex<Option<Instant>>,
}

impl Rate {
    /// At most so many bytes per second; `None`: any number.
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, passed: Mutex::new(None) }
    }

    /// Waits until `bytes` more may move: until all bytes before them have passed.
    pub(crate) async fn admit(&self, bytes: u64) {
        if let Some(wait) = self.wait(bytes, Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }

    fn wait(&self, bytes: u64, now: Instant) -> Option<Duration> {
        let rate = self.bytes_per_second?.max(1);
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64).min(LONGEST);
        let mut passed = self.passed.lock();
        let begins = passed.map_or(now, |passed| passed.max(now));
        *passed = Some(begins + takes);
        Some(begins - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_one_after_the_other_and_idle_time_is_not_saved() {
        let (rate, now) = (Rate::new(Some(1000)), Instant::now());
        let at = |ms: u64| now + Duration::from_millis(ms);
        let ms = |wait: Option<Duration>| wait.unwrap().as_millis();
        assert_eq!(ms(rate.wait(500, now)), 0);
        assert_eq!(ms(rate.wait(250, now)), 500);
        assert_eq!(ms(rate.wait(1, at(100))), 650);
        assert_eq!(ms(rate.wait(500, at(5000))), 0);
        assert_eq!(ms(rate.wait(1, at(5000))), 500);
        assert_eq!(Rate::new(None).wait(u64::MAX, now), None);
    }
}
