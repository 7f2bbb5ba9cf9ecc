//! `weir map`: shows a file's data, holes and cached pages; `weir_tools::map` draws them.

use super::with_mounts;
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::ended::Ended;
use crate::output::{print, print_json, text_and_hex, write_file};
use serde::Serialize;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::kernel_cache::{Cached, cached};
use weir_tools::location::Location;
use weir_tools::map::text::{Glyphs, cells_in};
use weir_tools::map::{Cells, Map, svg, text};
use weir_tools::mounts::{Links, Mounts};
use weir_tools::text::kind_name;
use weir_vfs::{Access, Caller, FileKind};

/// Most rows of a picture.
const ROWS: usize = 8;

/// Draw which parts of a file are data, holes, and cached
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir map disk.img
  weir map nfs://filer/images/disk.img            as the server reports it (SEEK, NFSv4.2)
  weir map disk.img --svg disk.svg
  weir map disk.img --json | jq '.extents[] | select(.kind == \"hole\")'

The height of a block is the share of data in it. The line below shows cached pages: of a local \
file, those in the kernel's cache; of a file on a server, those in this process's cache. A server \
without SEEK (before NFSv4.2) does not report holes, so the whole file appears as data.")]
pub(crate) struct Args {
    /// The file
    #[arg(value_name = "LOCATION", value_parser = location())]
    location: Location,
    /// Write an SVG picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArgs,
    /// Columns of the picture [default: of the terminal]
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(20..=1000))]
    width: Option<u16>,
    /// Draw with #, + and . only
    #[arg(long)]
    ascii: bool,
    #[command(flatten)]
    mount: MountArgs,
}

/// A map, with the exact path.
#[derive(Serialize)]
struct MapJson<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(flatten)]
    map: &'a Map,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let terminal = std::io::stdout().is_terminal();
    let columns = match args.width {
        Some(width) => width.into(),
        None => console::Term::stdout().size_checked().map_or(80, |(_, columns)| columns.into()),
    };
    let cells = match args.svg {
        Some(_) => svg::WIDTH * ROWS,
        None => cells_in(columns) * ROWS,
    };
    let map = with_mounts(&args.mount, async |mounts| look(mounts, &args, cells).await)?;
    if let Some(path) = &args.svg {
        write_file(path, svg::draw(&map))?;
    }
    match (args.json.wanted(), &args.svg) {
        (true, _) => {
            let (path, path_hex) = text_and_hex(&args.location.bytes());
            print_json(&MapJson { path, path_hex, map: &map })
        }
        (false, Some(_)) => Ok(Ended::Done),
        (false, None) => {
            let glyphs = if args.ascii { Glyphs::ASCII } else { Glyphs::UNICODE };
            let colour = terminal && console::colors_enabled();
            print(text::draw(&map, columns, &glyphs, colour).as_bytes())
        }
    }
}

async fn look(mounts: &mut Mounts, args: &Args, cells: usize) -> Result<Map> {
    let place = mounts.place(&args.location, Links::Follow).await?;
    let attr = place.existing("map")?;
    let asked = || format!("map {}", args.location);
    if attr.kind != FileKind::Regular {
        let failure = Failure::new(asked(), format!("it is a {}", kind_name(attr.kind)));
        return Err(failure.advice("name a regular file"));
    }
    // The kernel's cache is read first, because opening the file might add pages to it.
    let kernel = match &args.location {
        Location::Local(path) => kernels(path, attr.size, cells),
        Location::Nfs(_) => None,
    };
    let file = place.fs.open(&Caller::Own, attr.id, Access::READ).await.asked(asked)?;
    let mut map = Map::of(args.location.to_string(), &file, attr.allocated, cells).await?;
    match (&args.location, kernel) {
        (_, Some(cached)) => map.counted("the kernel's", cached),
        (Location::Nfs(_), None) => map.cached("this process's", file.resident()),
        (Location::Local(_), None) => {}
    }
    Ok(map)
}

fn kernels(path: &Path, size: u64, cells: usize) -> Option<Cached> {
    cached(&fs::File::open(path).ok()?, size, Cells::new(size, cells).ranges())
}
