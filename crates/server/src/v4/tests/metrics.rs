//! Metrics, as read over HTTP.

use super::*;
use crate::report;
use weir_nfs::v4::op::{read, read_plus, write};
use weir_nfs::v4::types::StableHow;

/// Sends one request. Returns the reply's head and body.
async fn ask(addr: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.into(), body.into())
}

#[tokio::test]
async fn operations_are_counted_and_read_over_http() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    let (file, stateid) = c.open("file").await;
    for _ in 0..3 {
        c.on(&file, Op::Read(read::Args { stateid, offset: 0, count: 100 })).await;
    }
    c.fails(vec![Op::Putrootfh(()), Op::Lookup("none".into())]).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(report::serve(f.server.report(), listener));
    let (head, body) = ask(addr, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let value = |name: &str| {
        let line = body.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {body}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let read = "{protocol=\"nfs4\",operation=\"read\"";
    assert_eq!(value(&format!("weir_operation_seconds_count{read}")), 3.0);
    let last = format!("weir_operation_seconds_bucket{{le=\"+Inf\",{}", &read[1..]);
    assert_eq!(value(&last), 3.0);
    // Number, stateid, offset and count; number, status, eof and length.
    assert_eq!(value(&format!("weir_received_bytes_total{read}")), 3.0 * 32.0);
    assert_eq!(value(&format!("weir_sent_bytes_total{read}")), 3.0 * 16.0);
    let failed =
        "weir_failed_total{protocol=\"nfs4\",operation=\"lookup\",status=\"NFS4ERR_NOENT\"}";
    assert_eq!(value(failed), 1.0);
    assert_eq!(value("weir_cache_budget_bytes{cache=\"/\"}"), f64::from(32 << 20));
    value("weir_cache_fast_reads_total{cache=\"/\"}");
    assert_eq!(value("weir_limit{limit=\"reply_bytes\"}"), f64::from(256 << 20));
    value("weir_limit_used{limit=\"reply_bytes\"}");
    assert_eq!(value("weir_limit{limit=\"kept_reply_bytes\"}"), f64::from(128 << 20));
    assert_eq!(value("weir_limit_used{limit=\"owner_bytes\"}"), 0.0);
    assert_eq!(value("weir_limit_refused_total{limit=\"reply_bytes\"}"), 0.0);
    assert!(body.ends_with("# EOF\n"), "{body}");

    let summary = f.server.report().summary();
    let line = summary.lines().find(|line| line.contains(" lookup ")).unwrap();
    assert!(line.contains("NFS4ERR_NOENT: 1"), "{line}");

    // Other paths get an error that names the right one; a peer that sends no request, or an endless one, is
    // disconnected.
    assert!(ask(addr, "GET / HTTP/1.0\r\n\r\n").await.0.contains("404"));
    assert!(ask(addr, "POST /metrics HTTP/1.0\r\n\r\n").await.0.contains("405"));
    assert!(ask(addr, &"x".repeat(8 << 10)).await.0.contains("400"));
}

#[tokio::test]
async fn bytes_read_and_written_are_counted_by_export() {
    use super::exports::{cache, export, serve, walk};
    let shared = cache();
    let exports =
        [export(&shared, "/a", Default::default()), export(&shared, "/b", Default::default())];
    let f = serve(exports.to_vec()).await;
    let mut c = f.client("a").await;
    let ops = [walk("/a"), vec![c.open_op("file", 0), Op::Getfh(())]].concat();
    let results = c.ok(ops).await;
    let [.., OpRes::Open(Ok(opened)), OpRes::Getfh(Ok(file))] = &results[..] else { panic!() };
    let (file, stateid, stable) = (file.clone(), opened.stateid, StableHow::Unstable);
    for offset in [0, 100_000] {
        let args = write::Args { stateid, offset, stable, data: Bytes::from(vec![7; 500]).into() };
        c.on(&file, Op::Write(args)).await;
    }
    c.on(&file, Op::Read(read::Args { stateid, offset: 0, count: 1 << 20 })).await;
    c.on(&file, Op::ReadPlus(read_plus::Args { stateid, offset: 90_000, count: 1 << 20 })).await;
    let expected = [
        "weir_export_reads_total{export=\"/a\"} 2",
        "weir_export_read_bytes_total{export=\"/a\"} ",
        "weir_export_writes_total{export=\"/a\"} 2",
        "weir_export_written_bytes_total{export=\"/a\"} 1000",
        "weir_export_reads_total{export=\"/b\"} 0",
    ];
    let text = f.server.report().open_metrics();
    for line in expected {
        assert!(text.contains(line), "{line}: {text}");
    }
    // Other options, the same counters.
    let mut exports = exports.to_vec();
    exports[0].options.read_only = true;
    f.server.set_exports(exports).unwrap();
    assert!(f.server.report().open_metrics().contains(expected[0]));
}

#[tokio::test]
async fn every_cache_is_counted_once() {
    use super::exports::{BUDGET, cache, export, serve};
    let (one, two) = (cache(), cache());
    two.set_budget(BUDGET / 2).unwrap();
    let options = ExportOptions::default;
    let f = serve(vec![
        export(&one, "/a", options()),
        export(&two, "/b", options()),
        export(&one, "/c", options()),
    ])
    .await;
    let text = f.server.report().open_metrics();
    let lines = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(lines("weir_export_reads_total{"), 3, "{text}");
    assert_eq!(lines("weir_cache_used_bytes{"), 2, "{text}");
    assert_eq!(lines("weir_cache_fast_reads_total{"), 2);
    for (path, budget) in [("/a", BUDGET), ("/b", BUDGET / 2)] {
        let line = format!("weir_cache_budget_bytes{{cache=\"{path}\"}} {budget}");
        assert_eq!(lines(&line), 1, "{text}");
    }
}
