//! What all commands promise of their JSON: docs/JSON.md.

mod common;

use common::{run, scratch, weir};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::Stdio;

/// A name whose text, escaped for a terminal or made UTF-8, is another one.
const ODD: &[u8] = b"a\\b\xff";

fn bytes_of(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Checks that no field is `null`, and that a text which is not exact has its bytes beside it. Returns how many such
/// texts there are.
fn check(value: &Value, whence: &str) -> usize {
    match value {
        Value::Null => panic!("null in {whence}"),
        Value::Array(values) => values.iter().map(|value| check(value, whence)).sum(),
        Value::Object(fields) => {
            let inexact = fields.iter().filter(|(name, value)| {
                let Some(text) = value.as_str().filter(|text| text.contains('\u{fffd}')) else {
                    assert!(
                        !value.as_str().is_some_and(|text| text.contains("\\xff")),
                        "{whence}: {name}"
                    );
                    return false;
                };
                let hex = fields.get(&format!("{name}_hex")).and_then(Value::as_str);
                let exact = bytes_of(hex.unwrap_or_else(|| panic!("no {name}_hex in {whence}")));
                assert_eq!(String::from_utf8_lossy(&exact), text, "{whence}");
                assert!(exact.windows(ODD.len()).any(|part| part == ODD), "{whence}: {text}");
                true
            });
            inexact.count() + fields.values().map(|value| check(value, whence)).sum::<usize>()
        }
        _ => 0,
    }
}

#[test]
fn every_name_is_exact_and_no_field_is_null() {
    let dir = scratch();
    let top = dir.path().join(OsStr::from_bytes(ODD));
    fs::create_dir(&top).unwrap();
    let file = top.join(OsStr::from_bytes(ODD));
    fs::write(&file, "content").unwrap();
    let link = top.join("link");
    symlink(OsStr::from_bytes(ODD), &link).unwrap();
    let state = dir.path().join(OsStr::from_bytes(&[b"state-", ODD].concat()));
    for (args, at, inexact) in [
        (&["ls"][..], &top, 2),
        (&["ls"], &file, 1),
        (&["stat"], &link, 2),
        // Of the link, its own path and its target.
        (&["find"], &top, 4),
        (&["du"], &top, 1),
        (&["df"], &file, 1),
        (&["checksum"], &file, 1),
        (&["map"], &file, 1),
        (&["serve", "--check", "--state-dir"], &state, 2),
    ] {
        let mut args: Vec<OsString> = args.iter().map(Into::into).collect();
        args.push(at.into());
        if at == &state {
            args.push(top.clone().into());
        }
        args.push("--json=1".into());
        let whence = format!("{args:?}");
        let said: Value = serde_json::from_str(&run(args)).unwrap();
        assert_eq!(check(&said, &whence), inexact, "{whence}: {said:#}");
    }
    // On the machine's own file systems only the state of the default place is left out.
    let args = ["serve".as_ref(), "--check".as_ref(), "--json".as_ref(), top.as_os_str()];
    let said: Value = serde_json::from_str(&run(args)).unwrap();
    assert_eq!(check(&said, "serve --check"), 1, "{said:#}");
    assert!(said.get("state_dir").is_none() && said.get("threads").is_none(), "{said:#}");
}

#[test]
fn a_server_announces_itself_in_one_line() {
    let dir = scratch();
    let export = dir.path().join(OsStr::from_bytes(ODD));
    fs::create_dir(&export).unwrap();
    let mut command = weir(["serve", "--json=1", "--bind", "127.0.0.1:0", "--state-dir"]);
    command.arg(dir.path().join(OsStr::from_bytes(&[b"state-", ODD].concat()))).arg(&export);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let (mut line, mut rest) = (String::new(), String::new());
    out.read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    let said: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(check(&said, "serve"), 2, "{said:#}");
    assert_eq!((said["exports"][0]["name"].as_str(), &rest[..]), (Some("/"), ""));
}
