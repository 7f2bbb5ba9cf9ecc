//! `weir exports`: lists what servers export, as showmount(8) does.

use super::runtime;
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::{complain, print, print_json, text_and_hex};
use serde::Serialize;
use weir_tools::failure::{Failure, Result};
use weir_tools::location::Location;
use weir_tools::text::shown;

/// List what servers export
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir exports nfs://filer/
  weir exports --json nfs://filer/ | jq -r '.[].path'

The list is that of the MOUNT service (version 3). A server of version 4 alone has none: `weir \
ls nfs://filer/` shows its exports as directories.")]
pub(crate) struct Args {
    /// The servers; paths do not matter
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

#[derive(Serialize)]
struct Exported {
    server: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    /// Networks, hosts or groups that may mount it; none: everyone.
    clients: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let options = args.mount.options()?;
    let runtime = runtime()?;
    let mut failed = false;
    let mut found = Vec::new();
    for location in &args.locations {
        let Location::Nfs(url) = location else {
            let failure =
                Failure::new(format!("list the exports of {location}"), "it is a local path");
            return Err(failure.advice("name a server: nfs://HOST/"));
        };
        match runtime.block_on(weir_client::exports(url, &options)) {
            Ok(list) => found.extend(list.into_iter().map(|export| {
                let (path, path_hex) = text_and_hex(&export.path);
                let clients = export.clients.iter().map(|name| shown(name)).collect();
                Exported { server: url.host.clone(), path, path_hex, clients }
            })),
            Err(error) => {
                let failure =
                    Failure::new(format!("list the exports of {location}"), error.to_string());
                complain(&failure.advice("`weir ls` lists the exports of a server of version 4"));
                failed = true;
            }
        }
    }
    match args.json.wanted() {
        true => print_json(&found)?,
        false => print(table(&found).as_bytes())?,
    };
    Ok(if failed { Ended::Failed } else { Ended::Done })
}

fn table(found: &[Exported]) -> String {
    let width = found.iter().map(|export| export.path.chars().count()).max().unwrap_or(0);
    let line = |export: &Exported| {
        let clients = match export.clients.is_empty() {
            true => "(everyone)".into(),
            false => export.clients.join(","),
        };
        format!("{:<width$} {clients}\n", shown(export.path.as_bytes()))
    };
    found.iter().map(line).collect()
}
