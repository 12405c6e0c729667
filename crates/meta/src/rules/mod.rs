//! Rules, hooks and their runs: the tables, and the comparison of versions with the rules. Next: `server/src/rules`, whose driver turns
//! queued rule runs into jobs.
//!
//! - `matching` reads the feed and queues a rule run for each version that matches a rule.
//! - `definitions` stores the rules, `directory` the rules that are attributes of directories.
//! - `runs`, `jobs`, `batches`, `walks` and `input_deletion` store the work of rules.

pub mod batches;
pub mod definitions;
pub mod directory;
pub mod input_deletion;
pub mod jobs;
mod matching;
pub mod runs;
pub mod walks;

pub(crate) use matching::take_until;
pub use matching::{FeedStep, position, take, take_all};

use super::Fault;
use super::transaction::Tx;
use super::vnode::Caller;
use crate::Connection;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use tidemill_client::users;
use tidemill_lang::rule::Rule;
use tidemill_lang::rule::hook::{BatchEnd, InputAction};
use tokio::sync::Notify;

/// Maximum number of rules of one ordinary user.
pub const RULES_EACH_MAX: usize = 100;
/// Maximum number of rules of all users.
pub const RULES_MAX: usize = 1000;

/// Looks up the users in a rule's conditions. Returns an error if a user does not exist.
pub fn check_users(source: &str, rule: &mut Rule) -> Result<(), String> {
    let unknown = rule.conditions.find_users(users::uid);
    match unknown.first() {
        Some(user) => Err(format!(
            "{source}: setting \"where\": user {user} does not exist; write the name or number of a user of the server's host"
        )),
        None => Ok(()),
    }
}

/// A rule as stored in the database.
#[derive(Clone, Debug)]
pub struct StoredRule {
    /// Number of the rule, which all revisions of the rule share.
    pub id: u64,
    /// Owner of the rule, with the owner's groups at the time of the rule's creation.
    pub owner: Caller,
    /// Number of the present text of the rule: 1 at first, and one more after each replacement.
    pub revision: u64,
    /// Whether the rule runs for the files of all users, with the rights of the file's owner.
    pub for_all: bool,
    /// Whether the rule is paused: its rule runs stay queued, and no jobs start.
    pub paused: bool,
    /// Name of the rule's text in error messages.
    pub source: String,
    /// Text of the rule, as the rule's owner wrote it.
    pub text: String,
    /// Time of the present revision, in nanoseconds since the Unix epoch.
    pub changed: i64,
    /// Inode of the directory that has the rule as its attribute; 0 for a rule without such a directory.
    pub directory: u64,
    /// Compiled form of the text, with which versions are compared.
    pub rule: Rule,
}

impl StoredRule {
    /// Returns the event that ends a batch of the hook; `None` for a rule that reduces nothing.
    pub fn batch_end(&self) -> Option<&BatchEnd> {
        self.rule.hook.as_ref()?.batches.as_ref()
    }

    fn input_action(&self) -> InputAction {
        let hook = self.rule.hook.as_ref();
        hook.map_or(InputAction::Keep, |hook| hook.spec.inputs)
    }
}

/// All rules, compiled so that each version can be compared with them.
#[derive(Debug, Default)]
pub struct Rules {
    any: AtomicBool,
    any_streaming: AtomicBool,
    any_input_action: AtomicBool,
    any_batches: AtomicBool,
    /// Whether the rules were read within a transaction that may have failed.
    unsure: AtomicBool,
    kept: RwLock<Arc<Vec<Arc<StoredRule>>>>,
    /// Number of the last row of the feed that was compared with the rules. The stored number is lower if the rows since match no rule.
    taken: AtomicI64,
    woken: Notify,
    fed: Notify,
    marked: Notify,
}

impl Rules {
    /// Whether there are rules, or jobs of removed rules. If not, seals need no check.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Returns all rules as last read from the database.
    pub fn all(&self) -> Arc<Vec<Arc<StoredRule>>> {
        self.kept.read().clone()
    }

    /// Whether there are rules that start while a file is still being written.
    pub fn any_streaming(&self) -> bool {
        self.any_streaming.load(Ordering::Acquire)
    }

    /// Whether there are hooks that delete or evict their input files.
    fn any_input_action(&self) -> bool {
        self.any_input_action.load(Ordering::Acquire)
    }

    /// Whether there are hooks that reduce the results of their map tasks.
    fn any_batches(&self) -> bool {
        self.any_batches.load(Ordering::Acquire)
    }

    /// Whether any directory has a rule as its attribute.
    fn any_of_directory(&self) -> bool {
        self.any() && self.all().iter().any(|kept| kept.directory != 0)
    }

    /// Makes the driver read the rules again.
    pub fn doubt(&self) {
        self.unsure.store(true, Ordering::Release);
        self.woken.notify_one();
    }

    /// Whether the driver has to read the rules again. The call resets this flag.
    pub fn unsure(&self) -> bool {
        self.unsure.swap(false, Ordering::AcqRel)
    }

    /// Reads all rules from the database.
    pub fn load(&self, db: &Connection) -> Result<(), Fault> {
        let kept = definitions::read(db, &self.all())?;
        let left = jobs::any_of_removed(db)?;
        self.any.store(left || !kept.is_empty(), Ordering::Release);
        let streaming = left || kept.iter().any(|kept| kept.rule.streaming);
        self.any_streaming.store(streaming, Ordering::Release);
        let input_action = |kept: &Arc<StoredRule>| kept.input_action() != InputAction::Keep;
        self.any_input_action
            .store(kept.iter().any(input_action), Ordering::Release);
        let batches = kept.iter().any(|kept| kept.batch_end().is_some());
        self.any_batches.store(batches, Ordering::Release);
        *self.kept.write() = Arc::new(kept);
        Ok(())
    }

    /// Wakes the driver after a rule run was queued or a job has ended. The driver writes to the database first, so the driver runs after
    /// the transaction that calls this function.
    pub fn wake(&self) {
        if self.any() {
            self.woken.notify_one();
        }
    }

    /// Wakes the driver after a row of the feed was written in a transaction, if there are rules.
    pub(crate) fn wake_for_feed(&self) {
        if self.any() {
            self.fed.notify_one();
        }
    }

    /// Waits until the feed has a new row; a row since the last call counts, too.
    pub async fn fed(&self) {
        self.fed.notified().await;
    }

    /// Waits until the driver is woken; a wake-up before the call counts, too.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Wakes the task that processes marker files, after a marker file was sealed.
    fn wake_for_marker(&self) {
        self.marked.notify_one();
    }

    /// Waits until a marker file was sealed; a marker file before the call counts, too.
    pub async fn woken_for_marker(&self) {
        self.marked.notified().await;
    }
}

impl Tx<'_> {
    /// Compares all changes in the feed with the rules, before the rules, their directories or their batches change in the same transaction.
    pub fn settle_rules(&self) -> Result<(), Fault> {
        take_all(self.db, self.shared, self.now)
    }

    /// Reads all rules after a change of the rules or of their directories, in the transaction of the change.
    pub fn reload_rules(&self) -> Result<(), Fault> {
        let rules = &self.shared.rules;
        // The transaction may still fail.
        rules.doubt();
        rules.load(self.db)
    }
}
