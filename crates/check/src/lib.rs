//! Tests an NFSv4.2 server against the RFCs: READ_PLUS, locks, stateids, opens, attributes,
//! sessions, directories, version 4.0, and clients that stop renewing their lease.
//!
//! A rule is a row in one of the tables in `parts`, with the function that tests it in the same
//! file. docs/CHECK.md explains every rule; a test compares it with the tables.
//!
//! 1. The check does not trust data from the server: it compares what it reads with what it wrote.
//! 2. A rule does not depend on the outcome of another, and shares no file with it. The exception
//!    is the first rule of a part, which may determine whether the server has the feature.
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
//! rule      - the type of a rule, and reports
//! scene     - a directory, a file and a link to try operations on
//! examiner  - clients of the server, the directory of the examination, and files in it
//! compare   - compares a READ_PLUS reply with a file's bytes
//! raw40     - a client of version 4.0
//! raw_open  - a client that sends raw OPENs
//! verdict   - the result of a test
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

/// What to test and how to mount.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Mount options of every client. The version is always 4.2.
    pub mount: MountOptions,
    /// Also test leases. This takes one lease time of the server, or three if a lease does not
    /// expire.
    pub leases: bool,
}

/// Every rule, in the order in which [`run`] tests them.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    PARTS.iter().chain(V40).chain(LEASES).chain([&LAST]).flat_map(|part| part.rules)
}

/// Tests the server in a new directory below `url`, and removes the directory afterwards.
///
/// # Errors
/// The server cannot be mounted with version 4.2, or the directory cannot be created.
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
