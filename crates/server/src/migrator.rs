//! Requests to drain and remove nodes and to migrate files. This module writes the requests to tables ([`crate::migrations`]). Next: the
//! dispatcher's driver in `server/src/jobs`, which executes the requests.

use crate::access::Access;
use crate::clock;
use crate::cluster::Cluster;
use crate::elastic::manager::Manager;
use crate::jobs::DriverMessage;
use crate::lease_recall::LeaseRecalls;
use crate::migrations::{self, NodeProperties, NodeRefusal, balance, files, labels, reservations};
use crate::namespace_service::refused;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tidemill_meta::commit::Database;
use tidemill_meta::placement::migrations::cancel_rebalance;
use tidemill_meta::placement::nodes;
use tidemill_meta::shared::NamesShared;
use tidemill_meta::transaction::Tx;
use tidemill_meta::{Caller, Connection, Fault, SqliteNames};
use tidemill_model::id::LabelId;
use tidemill_wire::v1;
use tonic::{Request, Response, Status};

/// Handler of the requests to drain nodes and migrate files.
#[derive(Clone, Debug)]
pub(crate) struct Migrator {
    database: Arc<Database>,
    shared: Arc<NamesShared>,
    cluster: Arc<Cluster>,
    driver: Sender<DriverMessage>,
    /// Running labels that do not belong to a job.
    running: Arc<Mutex<BTreeSet<LabelId>>>,
}

/// gRPC service of requests to drain nodes and migrate files.
#[derive(Clone, Debug)]
pub(crate) struct PlaceService {
    migrator: Migrator,
    manager: Manager,
    lease_recalls: LeaseRecalls,
    access: Arc<Access>,
}

impl PlaceService {
    pub(crate) fn new(
        migrator: Migrator,
        manager: Manager,
        lease_recalls: LeaseRecalls,
        access: Arc<Access>,
    ) -> Self {
        Self {
            migrator,
            manager,
            lease_recalls,
            access,
        }
    }
}

impl From<NodeRefusal> for Status {
    fn from(refusal: NodeRefusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            NodeRefusal::Unknown(_) => Self::not_found(text),
            NodeRefusal::NoReservation(_) => Self::not_found(text),
            NodeRefusal::Full { .. } | NodeRefusal::Missing { .. } | NodeRefusal::Share { .. } => {
                Self::resource_exhausted(text)
            }
            _ => Self::failed_precondition(text),
        }
    }
}

impl Migrator {
    pub(crate) fn new(
        names: &SqliteNames,
        cluster: &Arc<Cluster>,
        driver: &Sender<DriverMessage>,
        running: Arc<Mutex<BTreeSet<LabelId>>>,
    ) -> Self {
        Self {
            database: names.database().clone(),
            shared: names.shared().clone(),
            cluster: cluster.clone(),
            driver: driver.clone(),
            running,
        }
    }

    /// Writes a request to the tables and wakes the driver.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(
            &Connection,
            &NamesShared,
            &[NodeProperties],
        ) -> Result<Result<T, NodeRefusal>, Fault>
        + Send
        + 'static,
    ) -> Result<T, Status> {
        let (shared, members) = (self.shared.clone(), self.cluster.members());
        let written = self
            .database
            .write(move |db| work(db, &shared, &members))
            .await;
        if written.is_err() {
            // The memory has to agree with the stored state.
            let loaded = self.database.read(|db| self.shared.nodes.load(db));
            loaded.map_err(|fault| refused(&fault))?;
        }
        self.cluster.refresh();
        // The driver only stops when the server shuts down.
        let _ = self.driver.send(DriverMessage::Migrations);
        Ok(written.map_err(|fault| refused(&fault))??)
    }

    /// Starts draining a node, or cancels the drain.
    pub(crate) async fn drain(&self, request: v1::DrainRequest) -> Result<v1::Drain, Status> {
        let v1::DrainRequest { node, cancel } = request;
        let now = clock::now_ns();
        self.write(move |db, shared, members| match cancel {
            true => migrations::cancel_drain(db, shared, node),
            false => migrations::drain(db, shared, (node, members), now),
        })
        .await?;
        let mut drains = self.drains()?.into_iter();
        let drain = drains.find(|drain| drain.node == node);
        Ok(drain.unwrap_or(v1::Drain {
            node,
            ..v1::Drain::default()
        }))
    }

    fn drains(&self) -> Result<Vec<v1::Drain>, Status> {
        let drains = self.database.read(|db| nodes::drains(db, clock::now_ns()));
        let mut drains = drains.map_err(|fault| refused(&fault))?;
        self.mark_offline(&mut drains);
        Ok(drains)
    }

    /// Sets the flag in the progress of those draining nodes that are offline and therefore make no progress.
    fn mark_offline(&self, drains: &mut [v1::Drain]) {
        let offline = self.cluster.offline_for(std::time::Duration::ZERO);
        for drain in drains {
            drain.offline = offline.contains(&drain.node);
        }
    }

    /// Removes a node from the cluster.
    pub(crate) async fn remove(
        &self,
        request: v1::RemoveNodeRequest,
    ) -> Result<v1::RemoveNodeReply, Status> {
        let v1::RemoveNodeRequest { node, lose } = request;
        let now = clock::now_ns();
        let removed = self.write(move |db, shared, members| {
            migrations::remove(db, shared, (node, members), (lose, now))
        });
        let files_lost = removed.await?;
        self.cluster.forget(node);
        Ok(v1::RemoveNodeReply { files_lost })
    }

    /// Requests the migration of files to nodes.
    pub(crate) async fn move_files(
        &self,
        caller: Caller,
        request: v1::MoveRequest,
    ) -> Result<v1::MoveReply, Status> {
        let sites = self.cluster.sites();
        let now = clock::now_ns();
        self.write(move |db, shared, members| {
            let tx = Tx::new(db, shared, &caller, 0, now);
            match request.cancel {
                true => files::cancel(&tx, &request.path).map(Ok),
                false => files::to(&tx, &request, (members, &sites)),
            }
        })
        .await
    }

    /// Returns the files at or below a path that mounts are writing, or have closed and not sealed yet.
    async fn written(
        &self,
        caller: &Caller,
        request: &v1::StageRequest,
    ) -> Result<Vec<u64>, Status> {
        let now = clock::now_ns();
        let read = |db: &Connection| {
            let tx = Tx::new(db, &self.shared, caller, 0, now);
            files::written(&tx, request)
        };
        let written = self.database.read_for(caller, read).await;
        written.map_err(|fault| refused(&fault))
    }

    /// Requests the stage-out of files from the burst tier, or replicas of stored files on a node of the burst tier.
    async fn stage(
        &self,
        caller: Caller,
        request: v1::StageRequest,
    ) -> Result<v1::StageReply, Status> {
        let sites = self.cluster.sites();
        let now = clock::now_ns();
        self.write(move |db, shared, members| {
            let tx = Tx::new(db, shared, &caller, 0, now);
            match &request.stage_in {
                Some(stage_in) => files::stage_in(&tx, (&request, stage_in), (members, &sites)),
                None => files::stage_out(&tx, &request),
            }
        })
        .await
    }

    /// Reserves space in the burst tier.
    async fn reserve(
        &self,
        caller: Caller,
        request: v1::SpaceReservationRequest,
    ) -> Result<v1::SpaceReservation, Status> {
        let sites = self.cluster.sites();
        let now = clock::now_ns();
        self.write(move |db, shared, members| {
            let tx = Tx::new(db, shared, &caller, 0, now);
            reservations::reserve(&tx, &request, (members, &sites))
        })
        .await
    }

    /// Ends space reservations in the burst tier.
    async fn release(
        &self,
        caller: Caller,
        request: v1::ReleaseRequest,
    ) -> Result<Vec<v1::SpaceReservation>, Status> {
        let now = clock::now_ns();
        self.write(move |db, shared, _| {
            reservations::release(&Tx::new(db, shared, &caller, 0, now), &request)
        })
        .await
    }

    /// Returns the caller's space reservations in the burst tier.
    async fn reservations(&self, caller: &Caller) -> Result<Vec<v1::SpaceReservation>, Status> {
        let now = clock::now_ns();
        let list = |db: &Connection| reservations::list(&Tx::new(db, &self.shared, caller, 0, now));
        let listed = self.database.read_for(caller, list).await;
        listed.map_err(|fault| refused(&fault))
    }

    /// Requests migrations from full nodes to empty nodes.
    async fn rebalance(&self, request: v1::RebalanceRequest) -> Result<v1::RebalanceReply, Status> {
        if request.cancel {
            self.write(|db, _, _| cancel_rebalance(db).map(Ok)).await?;
            return Ok(v1::RebalanceReply::default());
        }
        let within = request.within_percent;
        if !(1..=100).contains(&within) {
            let text = format!("{within} is not a percentage of a node's capacity: give 1 to 100");
            return Err(Status::invalid_argument(text));
        }
        let sites = self.cluster.sites();
        let plan = self
            .database
            .read(|db| balance::Rebalance::plan(db, &sites, within));
        let plan = plan.map_err(|fault| refused(&fault))?;
        let reply = plan.reply();
        if !request.dry_run {
            let now = clock::now_ns();
            for migrations in plan.into_migrations() {
                self.write(move |db, shared, _| {
                    balance::keep(db, shared, &migrations, now).map(Ok)
                })
                .await?;
            }
        }
        Ok(reply)
    }

    /// Returns the progress of migrations, and the other labels that belong to no job.
    pub(crate) fn migrations(&self) -> Result<v1::MigrationsReply, Status> {
        let running = self.running.lock().clone();
        let removed = self.shared.nodes.removed();
        let listed = self.database.read(|db| {
            Ok(v1::MigrationsReply {
                drains: nodes::drains(db, clock::now_ns())?,
                labels: labels::list(db, &running, &removed)?,
                pending: labels::pending(db)?,
            })
        });
        let mut listed = listed.map_err(|fault| refused(&fault))?;
        self.mark_offline(&mut listed.drains);
        Ok(listed)
    }
}

fn suspend_reply(done: Result<(), String>) -> v1::SuspendReply {
    v1::SuspendReply {
        done: done.is_ok(),
        why: done.err().unwrap_or_default(),
    }
}

#[tonic::async_trait]
impl v1::places_server::Places for PlaceService {
    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::Drain>, Status> {
        self.access.need_administrator(&request)?;
        let drain = self.migrator.drain(request.into_inner()).await?;
        Ok(Response::new(drain))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeReply>, Status> {
        self.access.need_administrator(&request)?;
        let removed = self.migrator.remove(request.into_inner()).await?;
        Ok(Response::new(removed))
    }

    async fn suspend(
        &self,
        request: Request<v1::SuspendRequest>,
    ) -> Result<Response<v1::SuspendReply>, Status> {
        self.access.need_administrator(&request)?;
        let done = self.manager.suspend(request.into_inner().node).await;
        Ok(Response::new(suspend_reply(done)))
    }

    async fn resume(
        &self,
        request: Request<v1::SuspendRequest>,
    ) -> Result<Response<v1::SuspendReply>, Status> {
        self.access.need_administrator(&request)?;
        let done = self.manager.resume_now(request.into_inner().node).await;
        Ok(Response::new(suspend_reply(done)))
    }

    async fn r#move(
        &self,
        request: Request<v1::MoveRequest>,
    ) -> Result<Response<v1::MoveReply>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let _share = self.migrator.database.writes().take(&caller).await;
        let moved = self
            .migrator
            .move_files(caller, request.into_inner())
            .await?;
        Ok(Response::new(moved))
    }

    async fn stage(
        &self,
        request: Request<v1::StageRequest>,
    ) -> Result<Response<v1::StageReply>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let request = request.into_inner();
        let mut unknown = 0;
        // Files that were closed a moment ago are staged out, too. A request with `until` follows such a request.
        if request.until == 0 {
            let written = self.migrator.written(&caller, &request).await?;
            let unsettled = self.lease_recalls.unsettled(&written).await;
            unknown = unsettled.map_err(|fault| refused(&fault))?.len() as u64;
        }
        let _share = self.migrator.database.writes().take(&caller).await;
        let mut staged = self.migrator.stage(caller, request).await?;
        if unknown > 0 {
            staged.objects = staged.objects.saturating_add(unknown);
            staged.until = 0;
        }
        Ok(Response::new(staged))
    }

    async fn reserve(
        &self,
        request: Request<v1::SpaceReservationRequest>,
    ) -> Result<Response<v1::SpaceReservation>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let _share = self.migrator.database.writes().take(&caller).await;
        let reservation = self.migrator.reserve(caller, request.into_inner()).await?;
        Ok(Response::new(reservation))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::SpaceReservationsReply>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let _share = self.migrator.database.writes().take(&caller).await;
        let reservations = self.migrator.release(caller, request.into_inner()).await?;
        Ok(Response::new(v1::SpaceReservationsReply { reservations }))
    }

    async fn reservations(
        &self,
        request: Request<v1::SpaceReservationsRequest>,
    ) -> Result<Response<v1::SpaceReservationsReply>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let reservations = self.migrator.reservations(&caller).await?;
        Ok(Response::new(v1::SpaceReservationsReply { reservations }))
    }

    async fn rebalance(
        &self,
        request: Request<v1::RebalanceRequest>,
    ) -> Result<Response<v1::RebalanceReply>, Status> {
        self.access.need_administrator(&request)?;
        let planned = self.migrator.rebalance(request.into_inner()).await?;
        Ok(Response::new(planned))
    }

    async fn list(
        &self,
        request: Request<v1::MigrationsRequest>,
    ) -> Result<Response<v1::MigrationsReply>, Status> {
        self.access.need_administrator(&request)?;
        Ok(Response::new(self.migrator.migrations()?))
    }
}
