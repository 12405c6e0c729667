//! The gRPC service of lineage (next: `meta/src/lineage/mod.rs`).

use crate::access::Access;
use crate::clock;
use crate::namespace_service::refused;
use std::sync::Arc;
use tidemill_meta::lineage::query;
use tidemill_meta::transaction::Tx;
use tidemill_meta::{Fault, SqliteNames};
use tidemill_wire::v1;
use tonic::{Request, Response, Status};

/// gRPC service of lineage.
#[derive(Clone, Debug)]
pub(crate) struct LineageService {
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) access: Arc<Access>,
}

#[tonic::async_trait]
impl v1::lineage_server::Lineage for LineageService {
    async fn query(
        &self,
        request: Request<v1::LineageRequest>,
    ) -> Result<Response<v1::LineageReply>, Status> {
        let caller = self
            .access
            .caller(&request, request.get_ref().credentials.as_ref())?;
        let mut viewer = caller.clone();
        if viewer.checked {
            // The Linux kernel of the mount's host knows the groups and has not reported them.
            viewer.groups = self.access.groups_of(viewer.uid);
        }
        let question = request.into_inner();
        let names = self.names.clone();
        let share = names.database().turn(&caller).await;
        // Reading a large graph takes a while.
        let answer = tokio::task::spawn_blocking(move || {
            names.database().read_with(share.as_ref(), |db| {
                let tx = Tx::new(db, names.shared(), &caller, 0, clock::now_ns()).bounded();
                query(&tx, &viewer, &question)
            })
        });
        let answer = answer.await.map_err(|_| refused(&Fault::Closed))?;
        Ok(Response::new(answer.map_err(|fault| refused(&fault))?))
    }
}
