//! `weir check`: tests a server against the RFCs, and lists the rules.

use super::runtime;
use crate::arguments::JsonArgs;
use crate::ended::Ended;
use crate::output::{print, print_json};
use serde::Serialize;
use std::fmt::Write;
use weir_check::{Finding, Options, Rule, Verdict};
use weir_client::NfsUrl;
use weir_tools::failure::{Failure, Result};

/// Test an NFSv4.2 server against the RFCs: READ_PLUS, locks, stateids, opens, directories
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir check nfs://filer/scratch                  one rule a line
  weir check --leases nfs://filer/scratch         also tests silent clients
  weir check --list                               the rules
  weir check --json nfs://filer/ | jq '.[] | select(.verdict == \"fail\")'

The check creates a directory below URL, writes files of known layout, reads them with raw \
READ_PLUS calls, and compares every reply with the files and with RFC 7862 section 15.10. Two \
clients test locks (RFC 8881 section 18.10). The check sends invalid stateids with READ_PLUS \
(section 8.2.4), and reads directories in replies of all sizes while they change (section 18.23). \
With --leases it tests a client that falls silent (sections 8.3 and 8.4). A note means that the \
server is within its rights and could do better. Exit code 1 means that the server breaks a rule. \
docs/CHECK.md explains each rule.")]
pub(crate) struct Args {
    /// A writable directory on the server
    #[arg(value_name = "URL", required_unless_present = "list")]
    url: Option<NfsUrl>,
    /// Also test leases: takes one lease of the server, or three if a lease does not expire
    #[arg(long)]
    leases: bool,
    #[command(flatten)]
    json: JsonArgs,
    /// Print the rules and how each is tested, and test no server
    #[arg(long, conflicts_with_all = ["url", "leases"])]
    list: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    rule: &'a str,
    section: &'static str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

#[derive(Serialize)]
struct ListRow {
    rule: &'static str,
    section: &'static str,
    test: &'static str,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    match &args.url {
        Some(url) => examine(url, &args),
        None => list(args.json.wanted()),
    }
}

fn examine(url: &NfsUrl, args: &Args) -> Result<Ended> {
    let mut options = Options::default();
    options.leases = args.leases;
    let report = runtime()?.block_on(weir_check::run(url, &options));
    let failed =
        |error: weir_client::Error| Failure::new(format!("check {url}"), error.to_string());
    let report = report.map_err(failed)?;
    let rows: Vec<Row<'_>> = report.findings.iter().map(row).collect();
    if args.json.wanted() {
        print_json(&rows)?;
    } else {
        print(table(&rows).as_bytes())?;
    }
    Ok(if report.has_failures() { Ended::Failed } else { Ended::Done })
}

fn list(json: bool) -> Result<Ended> {
    let row = |&Rule { name, source, test, .. }: &'static Rule| ListRow {
        rule: name,
        section: source,
        test,
    };
    let rows: Vec<_> = weir_check::rules().map(row).collect();
    if json {
        print_json(&rows)?;
    } else {
        let mut out = String::new();
        for ListRow { rule, section, test } in rows {
            // Writing to a string does not fail.
            let _ = writeln!(out, "| {rule} | {section} | {test} |");
        }
        print(out.as_bytes())?;
    }
    Ok(Ended::Done)
}

fn row(finding: &Finding) -> Row<'_> {
    let (verdict, why) = match &finding.verdict {
        Verdict::Pass => ("pass", None),
        Verdict::Note(why) => ("note", Some(why.as_str())),
        Verdict::Fail(why) => ("fail", Some(why.as_str())),
    };
    Row { rule: finding.rule.name, section: finding.rule.source, verdict, why }
}

fn table(rows: &[Row<'_>]) -> String {
    let mut out = String::new();
    for Row { rule, section, verdict, why } in rows {
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{verdict}  {rule} ({section}){why}");
    }
    out
}
