//! Progress reports of a run.

/// Receives the progress of a run. By default, every method does nothing.
pub trait Observer: Send + Sync {
    /// The current measurement, and figures as they arrive: text to append to a log of the run.
    fn progress(&self, text: &str) {
        let _ = text;
    }

    /// Information that the reader of the report needs: omissions, and leftovers.
    fn notice(&self, text: &str) {
        let _ = text;
    }
}

/// Hears nothing.
impl Observer for () {}
