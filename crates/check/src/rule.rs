//! Rules, and reports of their tests.

use crate::examiner::Examiner;
use crate::verdict::{Result, Verdict};
use std::fmt;
use std::pin::Pin;

/// A rule that servers must keep.
pub struct Rule {
    /// The rule, in a few words.
    pub name: &'static str,
    /// Its source, for example `RFC 7862 15.10.3`.
    pub source: &'static str,
    /// What the test does.
    pub test: &'static str,
    pub(crate) test_it: Test,
}

/// The function that tests a rule. An unexpected error counts as a failure of the rule.
pub(crate) type Test = for<'a> fn(&'a mut Examiner) -> Testing<'a>;
type Testing<'a> = Pin<Box<dyn Future<Output = Result<Verdict>> + Send + 'a>>;

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rule").field(&self.name).field(&self.source).finish()
    }
}

/// Rules about one topic.
pub(crate) struct Part {
    pub(crate) rules: &'static [Rule],
    /// Whether the other rules are skipped if the first does not pass: the server then lacks the
    /// feature.
    pub(crate) first_is_needed: bool,
}

/// A row of a table of rules: name, source, description of the test, test function.
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

/// A rule and the result of its test.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// The result.
    pub verdict: Verdict,
}

/// The results of the test of a server.
#[derive(Clone, Debug)]
pub struct Report {
    /// One finding per tested rule.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether the server breaks a rule.
    pub fn has_failures(&self) -> bool {
        self.findings.iter().any(|finding| matches!(finding.verdict, Verdict::Fail(_)))
    }
}
