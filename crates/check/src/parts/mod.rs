//! The rules, one file per part: a table of rules, then their functions in the same order.

pub(crate) mod attributes;
pub(crate) mod clients40;
pub(crate) mod compounds;
pub(crate) mod delegated;
pub(crate) mod delegations;
pub(crate) mod directories;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod opens;
pub(crate) mod opens40;
pub(crate) mod read_plus;
pub(crate) mod replays40;
pub(crate) mod sessions;
pub(crate) mod stateids;

use crate::examiner::Examiner;
use crate::rule::{Part, rule};
use crate::verdict::{Result, Verdict};

/// The parts of every examination, in order.
pub(crate) const PARTS: &[Part] = &[
    Part { rules: read_plus::RULES, first_is_needed: true },
    Part { rules: locks::RULES, first_is_needed: true },
    Part { rules: stateids::RULES, first_is_needed: false },
    Part { rules: opens::RULES, first_is_needed: false },
    Part { rules: attributes::RULES, first_is_needed: false },
    Part { rules: sessions::RULES, first_is_needed: false },
    Part { rules: compounds::RULES, first_is_needed: false },
    Part { rules: names::RULES, first_is_needed: false },
    Part { rules: directories::RULES, first_is_needed: false },
    Part { rules: delegated::RULES, first_is_needed: false },
];

/// The parts for version 4.0, which not every server serves.
pub(crate) const V40: &[Part] = &[
    Part { rules: clients40::RULES, first_is_needed: true },
    Part { rules: replays40::RULES, first_is_needed: false },
    Part { rules: opens40::RULES, first_is_needed: false },
];

/// The parts that take as long as the server's lease.
pub(crate) const LEASES: &[Part] = &[
    Part { rules: leases::RULES, first_is_needed: false },
    Part { rules: delegations::RULES, first_is_needed: false },
];

/// The last part of every examination.
pub(crate) const LAST: Part = Part {
    rules: &[rule!(
        "created files and directories can be removed",
        "RFC 8881 18.25.3",
        "every file, then the directory",
        removal
    )],
    first_is_needed: false,
};

/// Removes all files and ends the examination's clients.
async fn removal(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(examiner.end().await)
}
