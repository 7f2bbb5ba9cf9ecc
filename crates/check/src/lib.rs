//! Tests an NFSv4.2 server against the RFCs: READ_PLUS, locks, stateids, opens, attributes, sessions,
//! directories, and what becomes of a client that stops renewing its lease.
//!
//! A rule is a row in one of the tables in `parts`, and the function that tests it, in the same file.
//! docs/CHECK.md explains every rule; a test compares it with the tables.
//!
//! 1. No data that the server sends is trusted: what is read is compared with what was written.
//! 2. A rule does not depend on another's outcome, and shares no file with it. The first rule of a part
//!    may be the exception: it says whether the server has what the part is about.
//!
//! ```no_run
//! use weir_check::{Options, Verdict};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let report = weir_check::run(&"nfs://filer/scratch".parse()?, &Options::default()).await?;
//! for finding in report.findings {
//!     if let Verdict::Fail(why) = finding.verdict {
//!         println!("{} ({}): {why}", finding.rule.name, finding.rule.source);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Layers, from the top:
//!
//! ```text
//! parts     - the rules
//! rule      - what a rule is
//! scene     - a directory, a file and a link to try operations on
//! examiner  - clients of the server, a directory of its own there, and what is made in it
//! compare   - one reply to READ_PLUS against a file's bytes
//! raw40     - a client of version 4.0
//! raw_open  - OPEN and its kin, sent as they are
//! verdict   - what a test comes to
//! ```

#![forbid(unsafe_code)]

mod compare;
mod examiner;
mod parts;
mod raw40;
mod raw_open;
mod rule;
mod scene;
mod verdict;

pub use rule::{Finding, Report, Rule};
pub use verdict::Verdict;

use examiner::Examiner;
use parts::{LAST, LEASES, PARTS, V40};
use weir_client::{MountOptions, NfsUrl, Result};

/// What to test, and how to mount.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// For every client of the check. The version is always 4.2.
    pub mount: MountOptions,
    /// Test leases, too. This takes one lease of the server, or three if a lease does not expire.
    pub leases: bool,
}

/// Every rule, in the order in which [`run`] tests them.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    PARTS.iter().chain(V40).chain(LEASES).chain([&LAST]).flat_map(|part| part.rules)
}

/// Tests the server in a directory of its own below `url`, and removes that afterwards.
///
/// # Errors
/// The server cannot be mounted with version 4.2, or the directory cannot be made.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn run(url: &NfsUrl, options: &Options) -> Result<Report> {
    let mut examiner = Examiner::begin(url, options).await?;
    let mut findings = Vec::new();
    let leases = if options.leases { LEASES } else { &[] };
    for part in PARTS.iter().chain(V40).chain(leases).chain([&LAST]) {
        for (index, rule) in part.rules.iter().enumerate() {
            let verdict = (rule.test_it)(&mut examiner).await;
            let verdict = verdict.unwrap_or_else(|error| Verdict::Fail(error.to_string()));
            let ends = index == 0 && part.first_is_needed && verdict != Verdict::Pass;
            findings.push(Finding { rule, verdict });
            if ends {
                break;
            }
        }
    }
    Ok(Report { findings })
}
