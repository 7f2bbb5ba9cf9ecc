//! `weir map` of local files.

mod common;

use common::{PAGE, fail, json, run, scratch, sparse};
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
