//! `weir check`: holds a server's READ_PLUS, locks, stateids, directories and leases against their RFCs.

use super::runtime;
use crate::ended::Ended;
use crate::output::{print, print_json};
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use weir_client::check::{self, Finding, Verdict};
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_tools::failure::{Failure, Result};

/// Check how an NFSv4.2 server keeps the rules: of READ_PLUS, locks, stateids, directories
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir check nfs://filer/scratch                  the rules, one a line
  weir check --leases nfs://filer/scratch         and what becomes of silent clients
  weir check --json nfs://filer/ | jq '.[] | select(.verdict == \"fail\")'

Files of known layout are made in a directory of their own below the one named, read by raw
READ_PLUS calls, and every reply is compared with what was written and with RFC 7862 section 15.10.
Locks are tried by two clients (RFC 8881 section 18.10), stateids that are no good with READ_PLUS
(section 8.2.4), directories in replies of all sizes while they change (section 18.23), and with
--leases a client that falls silent (sections 8.3 and 8.4). A note says that the server is within its
rights and could do better. Exit code 1 says that a rule is broken. docs/CHECK.md explains each rule.")]
pub(crate) struct Args {
    /// A directory on the server that may be written to
    #[arg(value_name = "URL")]
    url: NfsUrl,
    /// Examine leases, too: takes as long as the server's, or three times that where it does not end
    #[arg(long)]
    leases: bool,
    /// An array of rules and verdicts, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row<'a> {
    rule: &'a str,
    section: &'static str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let mut url = args.url.clone();
    // The query comes last, and the check is of this version only.
    url.query = format!("{}&vers=4.2", url.query);
    let findings = runtime()?.block_on(async {
        let mut clients = Clients { url, mounts: Vec::new() };
        let findings = examine(&mut clients, args.leases).await;
        clients.unmount().await;
        findings
    });
    let failed =
        |error: weir_client::Error| Failure::new(format!("check {}", args.url), error.to_string());
    let findings = findings.map_err(failed)?;
    let rows: Vec<Row<'_>> = findings.iter().map(row).collect();
    if args.json {
        print_json(&rows)?;
    } else {
        print(table(&rows).as_bytes())?;
    }
    let broken = findings.iter().any(|f| matches!(f.verdict, Verdict::Fail(_)));
    Ok(if broken { Ended::Failed } else { Ended::Done })
}

async fn examine(clients: &mut Clients, leases: bool) -> weir_client::Result<Vec<Finding>> {
    let (ours, theirs) = (clients.another().await?, clients.another().await?);
    let mut findings = check::all(&ours, &theirs).await?;
    if leases {
        let silent = clients.another().await?;
        findings.extend(check::leases(&ours, &theirs, &silent).await?);
    }
    Ok(findings)
}

/// Clients of the server that is checked.
struct Clients {
    url: NfsUrl,
    mounts: Vec<Arc<NfsFs>>,
}

impl Clients {
    async fn another(&mut self) -> weir_client::Result<Arc<NfsFs>> {
        let nfs = NfsFs::mount(&self.url, &MountOptions::default()).await?;
        self.mounts.push(Arc::clone(&nfs));
        Ok(nfs)
    }

    /// Leaves none of them behind at the server, whatever came of the check.
    async fn unmount(self) {
        for nfs in self.mounts.into_iter().rev() {
            nfs.unmount().await;
        }
    }
}

fn row(finding: &Finding) -> Row<'_> {
    let (verdict, why) = match &finding.verdict {
        Verdict::Pass => ("pass", None),
        Verdict::Note(why) => ("note", Some(why.as_str())),
        Verdict::Fail(why) => ("fail", Some(why.as_str())),
    };
    Row { rule: finding.rule, section: finding.section(), verdict, why }
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
