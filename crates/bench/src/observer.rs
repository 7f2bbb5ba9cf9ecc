//! What a run tells while it goes on.

/// Hears how a run goes on. Every method does nothing unless implemented.
pub trait Observer: Send + Sync {
    /// What is measured now, and figures as they come: text to append to a protocol of the run.
    fn progress(&self, text: &str) {
        let _ = text;
    }

    /// Something that the reader of the report has to know: what is left out, what stays behind.
    fn notice(&self, text: &str) {
        let _ = text;
    }
}

/// Hears nothing.
impl Observer for () {}
