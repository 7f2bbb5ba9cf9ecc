//! What a rule is, and what testing it came to.

use crate::examiner::Examiner;
use crate::verdict::{Result, Verdict};
use std::fmt;
use std::pin::Pin;

/// A rule that servers are to keep.
pub struct Rule {
    /// The rule, in a few words.
    pub name: &'static str,
    /// Where it is written: `RFC 7862 15.10.3`, for example.
    pub source: &'static str,
    /// What is tried.
    pub test: &'static str,
    pub(crate) test_it: Test,
}

/// Tests a rule. An error, which the test did not expect, counts as a failure of the rule.
pub(crate) type Test = for<'a> fn(&'a mut Examiner) -> Testing<'a>;
type Testing<'a> = Pin<Box<dyn Future<Output = Result<Verdict>> + Send + 'a>>;

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rule").field(&self.name).field(&self.source).finish()
    }
}

/// Rules about one thing.
pub(crate) struct Part {
    pub(crate) rules: &'static [Rule],
    /// If the first rule does not pass, the others are not tested: the server does not have the feature.
    pub(crate) first_is_needed: bool,
}

/// A row of a table of rules: name, source, what is tried, and the function that tries it.
macro_rules! rule {
    ($name:literal, $source:literal, $test:literal, $function:path) => {
        $crate::rule::Rule {
            name: $name,
            source: $source,
            test: $test,
            test_it: |examiner| Box::pin($function(examiner)),
        }
    };
}
pub(crate) use rule;

/// A rule, and what its test came to.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// What its test came to.
    pub verdict: Verdict,
}

/// What the test of a server came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// One for each rule that was tested.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether the server breaks a rule.
    pub fn has_failures(&self) -> bool {
        self.findings.iter().any(|finding| matches!(finding.verdict, Verdict::Fail(_)))
    }
}
