//! NFSv3 as an RPC program: executes calls through the duplicate request cache, and counts them.

use super::nfs3::Nfs3;
use super::ops;
use super::request::Request;
use crate::metrics::{Executed, Outcome, Row};
use crate::operation::reply_cache::{self, Keep, Lookup};
use crate::program::{Call, Program, ProgramId, Refusal};
use crate::storage::retry_journal::RequestKey;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Instant;
use weir_nfs::v3::{self, Procedure, op};
use weir_xdr::{Decoder, Encoder};

#[async_trait]
impl Program for Nfs3 {
    fn id(&self) -> ProgramId {
        ProgramId { program: v3::PROGRAM, version: v3::VERSION }
    }

    async fn call(self: Arc<Self>, call: Call, reply: Encoder) -> Result<Encoder, Refusal> {
        let procedure = Procedure::from_number(call.header.procedure);
        match procedure.ok_or(Refusal::NoSuchProcedure)? {
            Procedure::Null => Ok(reply),
            procedure => self.answer(procedure, call, reply).await,
        }
    }
}

/// A procedure of NFSv3 or NFSACL.
pub(super) trait Execute: Copy + Send {
    /// How long its reply is kept.
    fn keep(self) -> Keep;

    /// Its row in the metrics.
    fn row(self) -> Row;

    /// Decodes the arguments, executes the procedure, and encodes the results.
    fn execute(
        self,
        request: &Request<'_>,
        args: &mut Decoder,
        reply: &mut Encoder,
    ) -> impl Future<Output = Result<Outcome, Refusal>> + Send;
}

/// Results with an outcome for the metrics.
pub(super) trait Results {
    fn outcome(&self) -> Outcome;
}

impl<T, R> Results for Result<T, v3::Failure<R>> {
    fn outcome(&self) -> Outcome {
        self.as_ref().map_or_else(|failure| Outcome::V3(failure.status), |_| Outcome::Done)
    }
}

impl Results for () {
    fn outcome(&self) -> Outcome {
        Outcome::Done
    }
}

impl Nfs3 {
    /// Executes a call, or returns the cached results of an earlier execution.
    pub(super) async fn answer(
        &self,
        procedure: impl Execute,
        mut call: Call,
        mut reply: Encoder,
    ) -> Result<Encoder, Refusal> {
        let identity = self.exports.identify(&call).await?;
        let exports = self.exports.table();
        let (peer, reply_memory) = (&call.peer, &call.reply_memory);
        let keep = procedure.keep();
        let key = (keep != Keep::Nothing).then(|| reply_cache::Key::of(&call, keep));
        let retry = key.as_ref().filter(|_| keep == Keep::Reply);
        let retry = retry.map(|key| RequestKey::from(key).at(0));
        let request =
            Request { nfs: self, exports: &exports, identity, peer, reply_memory, key: retry };
        let (begun, received, before) = (Instant::now(), call.args.remaining(), reply.len());
        let count = |outcome, sent| {
            let (row, took) = (procedure.row(), begun.elapsed());
            self.metrics.count(&Executed { row, outcome, took, received, sent });
        };
        let Some(key) = key else {
            let outcome = procedure.execute(&request, &mut call.args, &mut reply).await?;
            count(outcome, reply.len() - before);
            return Ok(reply);
        };
        // A duplicate that waits gives its memory back when its connection ends: its client sends others.
        let found = self.replies.look_up(key, self.clock.monotonic());
        let found = call.peer.while_open(found).await.ok_or(Refusal::SystemError)?;
        let results = match found {
            Lookup::Cached(results) => results,
            Lookup::New(execution) => {
                // The connection ended while this call waited for one that it duplicates and that
                // was not executed.
                if !call.peer.is_open() {
                    return Err(Refusal::SystemError);
                }
                let mut results = Encoder::new();
                let outcome = procedure.execute(&request, &mut call.args, &mut results).await?;
                count(outcome, results.len());
                let results = results.finish().to_bytes();
                execution.done(results.clone(), keep, self.clock.monotonic());
                results
            }
        };
        reply.raw(&results);
        Ok(reply)
    }
}

macro_rules! dispatch {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $kind:ident, $max:literal;)*) => {
        impl Execute for Procedure {
            fn keep(self) -> Keep {
                match self {
                    Procedure::Write => Keep::WhileRunning,
                    _ if self.is_idempotent() => Keep::Nothing,
                    _ => Keep::Reply,
                }
            }

            fn row(self) -> Row {
                Row::V3(self)
            }

            async fn execute(
                self,
                request: &Request<'_>,
                args: &mut Decoder,
                reply: &mut Encoder,
            ) -> Result<Outcome, Refusal> {
                match self {
                    $(Procedure::$name => {
                        let args: op::$op::Args = args.get()?;
                        let results: op::$op::Res = ops::$op(request, args).await;
                        reply.put(&results);
                        Ok(results.outcome())
                    })*
                }
            }
        }
    };
}

weir_nfs::v3_procedures!(dispatch);
