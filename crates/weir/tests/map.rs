//! `weir map` of local files.

mod common;

use common::{PAGE, Server, fail, json, run, scratch, sparse};
use std::fs;

#[test]
fn extents_are_the_files() {
    let dir = scratch();
    let file = dir.path().join("disk");
    sparse(&file, 1 << 20, [(8 * PAGE, 2 * PAGE), ((1 << 20) - PAGE, PAGE)]);
    let map = json(["map".as_ref(), "--json".as_ref(), file.as_os_str()]);
    assert_eq!(map["size_bytes"], 1 << 20);
    assert_eq!((&map["data_bytes"], &map["data_extents"]), (&(3 * PAGE).into(), &2.into()));
    assert_eq!(map["hole_bytes"], (1 << 20) - 3 * PAGE);
    let extents = map["extents"].as_array().unwrap();
    let kinds: Vec<_> = extents.iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["hole", "data", "hole", "data"]);
    assert_eq!(
        (&extents[1]["start"], &extents[1]["end"]),
        (&(8 * PAGE).into(), &(10 * PAGE).into())
    );
}

#[test]
fn many_extents_are_all_found_in_every_version() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    // More than are requested one by one; most of them short, with long ones in between.
    let data: Vec<(u64, u64)> = (0..700)
        .map(|n| match n % 100 {
            99 => (n * 8 * PAGE, 5 * PAGE),
            _ => (n * 8 * PAGE, PAGE),
        })
        .collect();
    sparse(&export.join("disk"), 700 * 8 * PAGE + 5, data.iter().copied());
    let server = Server::start(&export, &["--squash", "none"]);
    let local = export.join("disk").to_str().unwrap().to_owned();
    for location in
        [local, server.url("disk", "vers=4.2"), server.url("disk", "vers=4.2&nconnect=2")]
    {
        let map = json(["map", "--json", &location]);
        assert_eq!((&map["data_extents"], &map["hole_extents"]), (&700.into(), &700.into()));
        let extents = map["extents"].as_array().unwrap();
        let found = extents.iter().filter(|extent| extent["kind"] == "data").map(|extent| {
            let [start, end] = ["start", "end"].map(|field| extent[field].as_u64().unwrap());
            (start, end - start)
        });
        assert!(found.eq(data.iter().copied()), "{location}");
    }
}

#[test]
fn the_picture_keeps_to_the_width_and_has_no_colour_in_a_pipe() {
    let dir = scratch();
    let file = dir.path().join("disk");
    sparse(&file, 64 << 20, [(0, 1 << 20), (32 << 20, 1 << 20)]);
    let picture = run(["map".as_ref(), "--width".as_ref(), "40".as_ref(), file.as_os_str()]);
    let rows: Vec<_> = picture.lines().skip(2).take_while(|l| !l.is_empty()).collect();
    assert!(rows.iter().all(|row| row.chars().count() <= 40), "{picture}");
    assert!(picture.contains('█') && picture.contains('·') && !picture.contains('\x1b'));
    let plain = run(["map".as_ref(), "--ascii".as_ref(), file.as_os_str()]);
    assert!(plain.is_ascii(), "{plain}");
}

#[test]
fn a_picture_for_documents() {
    let dir = scratch();
    let (file, svg) = (dir.path().join("disk"), dir.path().join("disk.svg"));
    sparse(&file, 1 << 20, [(0, 4096)]);
    run(["map".as_ref(), file.as_os_str(), "--svg".as_ref(), svg.as_os_str()]);
    let picture = fs::read_to_string(svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
}

#[test]
fn only_regular_files_have_maps() {
    let says = fail(1, ["map", "/"]);
    assert_eq!(says, "weir: cannot map /: it is a directory; name a regular file\n");
}
