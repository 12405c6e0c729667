//! Joins: turns the outputs of task instances into files. Each output of a task is striped like its first input, and its parts are the outputs
//! that task instances wrote for the parts of that input. No kernel runs, and no byte moves.

use super::{Dispatcher, Turn};
use tidemill_model::event::{Action, TaskState};
use tidemill_model::id::TaskId;
use tidemill_model::label::{Failure, FailureKind};
use tidemill_model::layout::{Layout, Part, StripedLayout};
use tidemill_model::object::Placed;

impl Dispatcher {
    /// Ends a ready task that joins the outputs of task instances.
    pub(super) fn join(&mut self, id: TaskId, turn: &mut Turn<'_>) {
        let layouts = match self.joined(id) {
            Ok(layouts) => layouts,
            Err(message) => {
                let kind = FailureKind::MissingOutput;
                return self.abandon(id, TaskState::Failed, Failure { kind, message }, turn);
            }
        };
        let mut outputs = Vec::with_capacity(layouts.len());
        for striped in &layouts {
            let first = striped.parts.first().and_then(|part| part.replicas.first());
            let Some(first) = first else { continue };
            let placed = Placed {
                object: self.ids.objects(1),
                node: first.node,
                size: striped.size,
            };
            self.replicas
                .part(placed.object, Layout::Striped(striped.clone()));
            outputs.push(placed);
        }
        self.redone.remove(&id);
        self.task_mut(id).outputs = Some(outputs.clone());
        turn.out.push(Action::Join {
            task: id,
            outputs,
            layouts,
        });
        self.set_state(id, TaskState::Done, turn);
        self.release_dependents(id, turn);
    }

    /// Returns the layouts of the joined outputs, or the reason for which the outputs can't be joined.
    fn joined(&self, id: TaskId) -> Result<Vec<StripedLayout>, String> {
        let task = self.task(id);
        let (source, made) = match task.ready_inputs.split_first() {
            Some((source, made)) => (self.replicas.striped(source.object), made),
            None => (None, task.ready_inputs.as_slice()),
        };
        let source = source.ok_or_else(|| "its first input is no longer striped".to_owned())?;
        let outputs = task
            .spec
            .outputs
            .iter()
            .zip(made.chunks(source.parts.len()));
        let joined = outputs.map(|(output, made)| {
            let sizes: Vec<u64> = made.iter().map(|part| part.size).collect();
            let (unit, size) = source.scaled(&sizes).map_err(|part| {
                format!(
                    "part {part} of `{}` has {} bytes, and was made from {} bytes of the input: with layout = \"same\" every task instance writes as \
                     many bytes as it reads, or all the same fraction or multiple, and stripes stay multiples of {} bytes",
                    output.path,
                    sizes[part],
                    source.length_of(part),
                    tidemill_model::layout::UNIT_GRAIN
                )
            })?;
            let part = |placed: &Placed| Part::on(placed.object, placed.size, placed.node);
            let parts = made.iter().map(part).collect();
            Ok(StripedLayout { unit, size, parts })
        });
        joined.collect()
    }
}
