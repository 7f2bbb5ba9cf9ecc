//! Minor version 0: clients without sessions, owners with sequence numbers.

use super::*;
use weir_nfs::v4::op::{close, setclientid, setclientid_confirm};
use weir_nfs::v4::types::NetAddr;

async fn introduce(c: &mut Client) -> u64 {
    introduce_at(c, None).await
}

/// Introduces a client, which listens for callbacks at an address.
pub(super) async fn introduce_at(c: &mut Client, listens: Option<SocketAddr>) -> u64 {
    let cb_location = listens.map_or_else(NetAddr::default, |addr| {
        let [high, low] = addr.port().to_be_bytes();
        let addr = format!("{}.{high}.{low}", addr.ip());
        NetAddr { netid: "tcp".into(), addr: addr.as_bytes().into() }
    });
    let args = setclientid::Args {
        client: ClientOwner { verifier: *b"one run.", owner: c.name.into() },
        cb_program: callbacks::PROGRAM,
        cb_location,
        callback_ident: 0,
    };
    let results = c.raw(vec![Op::Setclientid(args)]).await.results;
    let Some(OpRes::Setclientid(Ok(introduced))) = results.last() else { panic!("{results:?}") };
    let client_id = introduced.client_id;
    let wrong = setclientid_confirm::Args { client_id, confirm: [9; 8] };
    let refused = c.raw(vec![Op::SetclientidConfirm(wrong)]).await.status;
    assert_eq!(refused, Err(Error::StaleClientId));
    let args = setclientid_confirm::Args { client_id, confirm: introduced.confirm };
    assert_eq!(c.raw(vec![Op::SetclientidConfirm(args)]).await.status, Ok(()));
    client_id
}

#[tokio::test]
async fn an_owners_requests_are_done_once_and_in_order() {
    let f = Fixture::new().await;
    let mut c = f.connect("old", 0).await;
    let client_id = introduce(&mut c).await;
    assert_eq!(c.raw(vec![Op::Renew(client_id)]).await.status, Ok(()));
    assert_eq!(c.raw(vec![Op::Renew(client_id + 1)]).await.status, Err(Error::StaleClientId));

    let open = |c: &Client, seqid| match c.open_op("file", 0) {
        Op::Open(args) => Op::Open(open::Args {
            seqid,
            owner: StateOwner { client_id, owner: "process".into() },
            ..args
        }),
        op => op,
    };
    let ops = |c: &Client, seqid| vec![Op::Putrootfh(()), open(c, seqid), Op::Getfh(())];
    let first = c.raw(ops(&c, 5)).await;
    let again = c.raw(ops(&c, 5)).await;
    assert_eq!(first.status, Ok(()));
    assert_eq!(again.results, first.results);
    assert_eq!(c.raw(ops(&c, 7)).await.status, Err(Error::BadSeqId));

    let OpRes::Open(Ok(opened)) = &first.results[1] else { panic!() };
    let file = handle(&first.results).unwrap();
    let close = close::Args { seqid: 6, open_stateid: opened.stateid };
    let closed = c.raw(vec![Op::Putfh(file.clone()), Op::Close(close)]).await;
    assert_eq!(closed.status, Ok(()));
    let late = close::Args { seqid: 7, ..close };
    let closed = c.raw(vec![Op::Putfh(file), Op::Close(late)]).await;
    assert_eq!(closed.status, Err(Error::BadStateId));
    assert_eq!(
        c.raw(vec![Op::Sequence(sequence::Args {
            session: [0; 16],
            sequence_id: 0,
            slot: 0,
            highest_slot: 0,
            cache_this: false,
        })])
        .await
        .status,
        Err(Error::OpIllegal)
    );
}
