//! Read delegations: while this mount holds one, no other client changes the file, so opens and
//! GETATTR are answered without asking the server (RFC 8881 section 10.4).
//!
//! ```text
//!          OPEN                 CB_RECALL, too many, doubt              DELEGRETURN
//! (none) --------> held, open <---+------------------> due, open or not -----------> (none)
//!                   |   ^         |                     ^
//!      last closed  v   | opened  |                     |
//!                  held, idle ----+---------------------+
//! ```
//!
//! 1. An idle file stays open at the server, so that it is opened again by the open that there is.
//!    It is closed when its delegation goes.
//! 2. What rests on a delegation is known by the number of its [`grant`](table::Delegations::grant), and
//!    holds only as long as that is the same: from the moment in which a recall is read, or as soon
//!    as one may have been missed (a connection was made anew, the lease is not known to be
//!    renewed, the server says that it cannot call back or took something away), it does not.
//! 3. A delegation is given back without the file's turn, which a request may hold that the server
//!    answers only then.
//! 4. A file is not held under one while this mount opens it for writing: the server cannot tell this
//!    mount's changes from those of local programs then.
//! 5. At most `MOST` are held; whichever was not used for longest goes first.
//!
//! Write delegations are not asked for: data is written back before close anyway. In minor version 0
//! a client cannot ask for one, and the server would have to connect to this process to recall it
//! (past firewalls, at an open port), so servers that test the callback path give none. A delegation of
//! either kind that the server gives unasked is returned at once.

pub(crate) mod table;

use crate::protocol::Handle;
use crate::v4::client::V4;
use crate::v4::requests::putfh;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use weir_nfs::v4::op::bind_conn_to_session::{self, DirFromClient};
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Error as Nfs4Error, Op};

impl V4 {
    /// The number of the delegation that a file is held under, if it can be relied on.
    pub(in crate::v4) fn grant_of(&self, handle: &Handle) -> Option<u64> {
        let lease = self.lease()?;
        self.delegations.grant(handle, self.reconnects(), lease)
    }

    /// Gives back what is due for as long as the mount lives.
    pub(in crate::v4) fn give_back_what_is_due(self: &Arc<Self>) {
        let (mount, delegations): (Weak<Self>, _) =
            (Arc::downgrade(self), Arc::clone(&self.delegations));
        tokio::spawn(async move {
            loop {
                delegations.due.notified().await;
                let Some(v4) = mount.upgrade() else { return };
                if delegations.table.lock().unbound {
                    v4.bind_back().await;
                }
                while let Some((handle, stateid)) = delegations.take_due() {
                    v4.give_back(&handle, stateid).await;
                    let v4 = Arc::clone(&v4);
                    tokio::spawn(async move { v4.close_idle(&handle).await });
                }
            }
        });
    }

    /// Gives back the delegation of a file that is about to lose a name.
    pub(in crate::v4) async fn give_back_file(&self, handle: &Handle) {
        if self.give_back_held(handle).await {
            self.close_idle(handle).await;
        }
    }

    /// Gives back the delegation of a file, if there is one; what it kept open stays open.
    pub(in crate::v4) async fn give_back_held(&self, handle: &Handle) -> bool {
        let held = self.delegations.table.lock().held.remove(handle);
        let Some(held) = held else { return false };
        self.give_back(handle, held.stateid).await;
        true
    }

    /// Gives back all, for the end of the mount.
    pub(in crate::v4) async fn give_back_all(&self) {
        let held: HashSet<_> = {
            let mut table = self.delegations.table.lock();
            table.ended = true;
            table.held.drain().map(|(handle, held)| (handle, held.stateid)).collect()
        };
        for (handle, stateid) in held {
            self.give_back(&handle, stateid).await;
        }
    }

    async fn give_back(&self, handle: &Handle, stateid: StateId) {
        let ops = [putfh(handle), Op::Delegreturn(stateid)];
        match self.exchange(&self.own, "DELEGRETURN", &ops, None).await {
            // It was taken away; the server wants to hear that this is known (section 10.2.1).
            Ok(answer)
                if matches!(
                    answer.status,
                    Err(Nfs4Error::DelegRevoked | Nfs4Error::AdminRevoked | Nfs4Error::Expired)
                ) =>
            {
                let ops = [Op::FreeStateid(stateid)];
                if let Err(error) = self.call(&self.own, "FREE_STATEID", &ops).await {
                    tracing::debug!("{error}");
                }
            }
            Ok(answer) => {
                if let Err(error) = self.checked("DELEGRETURN", answer.status) {
                    tracing::debug!("{error}");
                }
            }
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// Has the server call back over connections that were made after the session.
    async fn bind_back(&self) {
        self.delegations.table.lock().unbound = false;
        let session = self.session().id;
        let args =
            bind_conn_to_session::Args { session, dir: DirFromClient::ForeOrBoth, use_rdma: false };
        if let Err(error) =
            self.call_alone("BIND_CONN_TO_SESSION", Op::BindConnToSession(args)).await
        {
            tracing::debug!("{error}");
        }
    }
}
