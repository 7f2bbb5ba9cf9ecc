//! `weir check`: tests a server's READ_PLUS, locks, stateids, directories and leases against the RFCs.

use super::runtime;
use crate::ended::Ended;
use crate::output::{print, print_json};
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use weir_check::{Finding, Verdict};
use weir_client::{MountOptions, NfsFs, NfsUrl};
use weir_tools::failure::{Failure, Result};

/// Test an NFSv4.2 server against the RFCs: READ_PLUS, locks, stateids, directories
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir check nfs://filer/scratch                  one rule a line
  weir check --leases nfs://filer/scratch         also tests silent clients
  weir check --json nfs://filer/ | jq '.[] | select(.verdict == \"fail\")'

The check creates a directory below URL, writes files of known layout, reads them with raw READ_PLUS
calls, and compares every reply with the files and with RFC 7862 section 15.10. Two clients test locks
(RFC 8881 section 18.10). The check sends invalid stateids with READ_PLUS (section 8.2.4), and reads
directories in replies of all sizes while they change (section 18.23). With --leases it tests a client
that falls silent (sections 8.3 and 8.4). A note means that the server is within its rights and could
do better. Exit code 1 means that the server breaks a rule. docs/CHECK.md explains each rule.")]
pub(crate) struct Args {
    /// A writable directory on the server
    #[arg(value_name = "URL")]
    url: NfsUrl,
    /// Also test leases: takes one lease of the server, or three if a lease does not expire
    #[arg(long)]
    leases: bool,
    /// Print an array of rules and verdicts as JSON
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
    // Appended last, so that it overrides the URL: the check tests this version only.
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
    let mut findings = weir_check::all(&ours, &theirs).await?;
    if leases {
        let silent = clients.another().await?;
        findings.extend(weir_check::leases(&ours, &theirs, &silent).await?);
    }
    Ok(findings)
}

/// Clients of the tested server.
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

    /// Removes all clients from the server, also after an error.
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
