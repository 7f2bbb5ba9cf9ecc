//! Cookies of a listing that go round, so that it would not end.

/// Detects a repeated cookie, in constant memory: keeps one, and replaces it at growing intervals (Brent's
/// cycle detection). A listing whose cookies form a cycle is noticed after at most three times as many pages as
/// there are different ones.
pub struct MetCookies {
    cookie: u64,
    /// Cookies met since.
    since: u64,
    /// It is replaced after this many.
    keep: u64,
}

impl Default for MetCookies {
    /// Those of a listing from its start, which is cookie 0.
    fn default() -> Self {
        Self { cookie: 0, since: 0, keep: 1 }
    }
}

impl MetCookies {
    /// Whether the cookie at which a listing goes on certainly occurred before.
    pub fn again(&mut self, cookie: u64) -> bool {
        if cookie == self.cookie {
            return true;
        }
        self.since += 1;
        if self.since == self.keep {
            *self = Self { cookie, since: 0, keep: self.keep.saturating_mul(2) };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_cookies_are_detected_soon() {
        for before in 0..40 {
            for round in 1..40 {
                let mut met = MetCookies::default();
                let cookie =
                    |n: u64| 1 + if n < before { n } else { before + (n - before) % round };
                let pages = (0..).find(|n| met.again(cookie(*n))).unwrap();
                assert!(pages >= before + round, "{before} and {round}: too early");
                assert!(pages <= 3 * (before + round) + 1, "{before} and {round}: {pages} pages");
            }
        }
        let mut met = MetCookies::default();
        assert!(!(1..100_000).any(|cookie| met.again(cookie)));
    }
}
