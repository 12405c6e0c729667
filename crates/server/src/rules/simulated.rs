//! Operations of root on rules in a simulated cluster, executed as the service executes clients' requests.

use super::driver::RuleRunner;
use super::service;
use crate::clock;
use std::sync::Arc;
use tidemill_lang::rule::Rule;
use tidemill_meta::rules::StoredRule;
use tidemill_meta::{Caller, Fault};

impl RuleRunner {
    fn called(&self, name: &str) -> Option<Arc<StoredRule>> {
        let all = self.names.shared().rules.all();
        let found = all.iter().find(|kept| kept.rule.name == name);
        found.cloned()
    }

    /// Stores a rule, which replaces any rule of the same name. Returns the rule's number.
    pub(crate) async fn put_rule(&self, text: &str) -> Result<u64, Fault> {
        let wrong = |_| Fault::Malformed("the text is not a rule");
        let rule = Rule::read("rule", text).map_err(wrong)?;
        let before = self.called(&rule.name);
        let kept = StoredRule {
            id: 0,
            owner: Caller::root(),
            revision: before.as_ref().map_or(1, |kept| kept.revision + 1),
            for_all: false,
            paused: false,
            source: "rule".into(),
            text: text.to_owned(),
            changed: clock::now_ns(),
            directory: 0,
            rule,
        };
        service::put(&self.names, kept, before.map(|kept| kept.id), false).await
    }

    /// Removes the rule with this name, if it exists.
    pub(crate) async fn remove_rule(&self, name: &str) -> Result<(), Fault> {
        match self.called(name) {
            Some(kept) => service::remove(self, kept).await,
            None => Ok(()),
        }
    }

    /// Queues the failed rule runs of a rule again. Returns the number of queued runs.
    pub(crate) async fn retry_rule(&self, name: &str) -> Result<u64, Fault> {
        match self.called(name) {
            Some(kept) => service::retry(&self.names, kept.id, String::new()).await,
            None => Ok(0),
        }
    }

    /// Closes the open batch of a hook. Returns the batch's number; `None` if no batch is open.
    pub(crate) async fn end_batch(&self, name: &str) -> Result<Option<u64>, Fault> {
        match self.called(name) {
            Some(kept) => service::end_batch(&self.names, kept.id).await,
            None => Ok(None),
        }
    }
}
