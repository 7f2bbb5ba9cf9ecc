//! A run of a benchmark: its progress, and its end by a signal.

use crate::commands::stop_signals::StopSignals;
use crate::ended::Ended;
use crate::output::{print, say};
use weir_bench::{Observer, interrupt};
use weir_tools::failure::{Asked, Result};

/// Prints the progress of a run.
pub(super) struct Teller {
    /// Whether to print no figures during the run.
    pub(super) is_quiet: bool,
}

impl Observer for Teller {
    fn progress(&self, text: &str) {
        if !self.is_quiet {
            // If nothing reads the output, the run continues, and still writes the report.
            let _ = print(text.as_bytes());
        }
    }

    fn notice(&self, text: &str) {
        say(format_args!("weir: {text}"));
    }
}

/// Runs `work`; on a signal to stop, the benchmark removes what it created, and returns.
pub(super) fn with_interrupts(work: impl FnOnce() -> Result<Ended>) -> Result<Ended> {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(1).enable_all().build();
    let runtime = runtime.asked(|| "start threads".into())?;
    let mut signals = {
        let _inside = runtime.enter();
        StopSignals::listen()?
    };
    runtime.spawn(async move {
        loop {
            signals.any().await;
            interrupt::stop();
        }
    });
    match work() {
        Err(_) if interrupt::is_interrupted() => Ok(Ended::Interrupted),
        ended => ended,
    }
}
