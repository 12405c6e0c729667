//! Folding: similar tasks become one node of a picture, and so do the files that these tasks read and wrote.
//!
//! Two nodes are similar under three conditions: they have the same distance from the sources, they have the same kernel (or directory and
//! extension), and their neighbours are similar. Refinement finds similar nodes: all nodes that may be similar count as similar until their
//! neighbours differ.

use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::lineage::{Graph, Vertex};

/// Minimum number of members of a folded node; the members of smaller groups are shown separately.
const MEMBERS_MIN: usize = 4;
/// Maximum number of refinement steps; more steps only separate nodes whose neighbours at this distance differ.
const ROUNDS_MAX: usize = 20;

/// Node of a lineage picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PictureNode {
    /// Members of the node; several members are similar to each other.
    pub(super) members: Vec<Vertex>,
}

/// Lineage graph whose nodes have one or many members.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Folded {
    /// Nodes in the order of their first members.
    pub(super) nodes: Vec<PictureNode>,
    /// Edges between indices of nodes, in the direction of the data.
    pub(super) edges: BTreeSet<(usize, usize)>,
}

/// Folds similar vertices of a lineage graph.
pub(super) fn fold(graph: &Graph) -> Folded {
    let edges: BTreeSet<(Vertex, Vertex)> =
        graph.edges().map(|edge| (edge.from, edge.to)).collect();
    let versions = graph
        .versions()
        .map(|version| Vertex::Version(version.object));
    let runs = graph.records().map(|record| Vertex::Run(record.task));
    let ends = edges.iter().flat_map(|(from, to)| [*from, *to]);
    let vertices: BTreeSet<Vertex> = versions.chain(runs).chain(ends).collect();
    let index: BTreeMap<Vertex, usize> = vertices.iter().copied().zip(0..).collect();
    let edges: BTreeSet<(usize, usize)> = edges
        .iter()
        .filter_map(|(from, to)| Some((*index.get(from)?, *index.get(to)?)))
        .collect();
    let vertices: Vec<Vertex> = vertices.into_iter().collect();
    let colours = refined(graph, &vertices, &edges);
    let mut alike: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, colour) in colours.iter().enumerate() {
        alike.entry(*colour).or_default().push(at);
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for members in alike.into_values() {
        if members.len() < MEMBERS_MIN {
            groups.extend(members.into_iter().map(|member| vec![member]));
        } else {
            groups.push(members);
        }
    }
    groups.sort_unstable();
    let mut group_of = vec![0; vertices.len()];
    for (group, members) in groups.iter().enumerate() {
        members.iter().for_each(|member| group_of[*member] = group);
    }
    let node = |members: &Vec<usize>| PictureNode {
        members: members.iter().map(|member| vertices[*member]).collect(),
    };
    Folded {
        nodes: groups.iter().map(node).collect(),
        edges: edges
            .iter()
            .map(|(from, to)| (group_of[*from], group_of[*to]))
            .collect(),
    }
}

/// Returns a number for each vertex; similar vertices have the same number.
fn refined(graph: &Graph, vertices: &[Vertex], edges: &BTreeSet<(usize, usize)>) -> Vec<usize> {
    let depths = depths(vertices.len(), edges);
    let looks = vertices.iter().zip(depths);
    let mut colours = numbered(
        looks
            .map(|(vertex, depth)| (depth, look(graph, *vertex)))
            .collect(),
    );
    let mut count = distinct(&colours);
    for _ in 0..ROUNDS_MAX {
        let mut near = vec![(BTreeSet::new(), BTreeSet::new()); vertices.len()];
        for (from, to) in edges {
            near[*to].0.insert(colours[*from]);
            near[*from].1.insert(colours[*to]);
        }
        let keys = colours.iter().copied().zip(near).collect();
        colours = numbered(keys);
        let now = distinct(&colours);
        if now == count {
            break;
        }
        count = now;
    }
    colours
}

fn numbered<K: Ord + Clone>(keys: Vec<K>) -> Vec<usize> {
    let known: BTreeSet<K> = keys.iter().cloned().collect();
    let numbers: BTreeMap<K, usize> = known.into_iter().zip(0..).collect();
    keys.iter()
        .filter_map(|key| numbers.get(key).copied())
        .collect()
}

fn distinct(colours: &[usize]) -> usize {
    colours.iter().max().map_or(0, |last| last + 1)
}

/// Returns the properties that a vertex shares with vertices that may be similar.
fn look(graph: &Graph, vertex: Vertex) -> String {
    match vertex {
        Vertex::Version(object) => graph.version(object).map_or(String::new(), |version| {
            let (directory, name) = version.shown_path().rsplit_once('/').unwrap_or_default();
            let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
            // A file with several readers differs from files with one reader each.
            let shared = graph.readers(object).nth(1).is_some();
            format!("{shared} {directory} {ending}")
        }),
        Vertex::Run(task) => graph.record(task).map_or(String::new(), |run| {
            format!("{} {}", run.hidden, run.kernel)
        }),
    }
}

/// Returns the length of the longest path from a source for each vertex. The length is 0 for vertices on a cycle, which lineage never
/// contains.
pub(super) fn depths(count: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<usize> {
    let mut waits = vec![0_usize; count];
    let mut after = vec![Vec::new(); count];
    for (from, to) in edges {
        waits[*to] += 1;
        after[*from].push(*to);
    }
    let mut depths = vec![0; count];
    let mut ready: Vec<usize> = (0..count).filter(|at| waits[*at] == 0).collect();
    while let Some(from) = ready.pop() {
        for &to in &after[from] {
            depths[to] = depths[to].max(depths[from] + 1);
            waits[to] -= 1;
            if waits[to] == 0 {
                ready.push(to);
            }
        }
    }
    depths
}

/// Returns one name for several names: their common begin and end.
pub(super) fn common(names: &[&str]) -> String {
    let Some((first, rest)) = names.split_first() else {
        return String::new();
    };
    if rest.iter().all(|name| name == first) {
        return (*first).to_owned();
    }
    let first: Vec<char> = first.chars().collect();
    let (mut head, mut tail) = (first.len(), first.len());
    for name in rest {
        let other: Vec<char> = name.chars().collect();
        let same = |pair: &(&char, &char)| pair.0 == pair.1;
        head = head.min(first.iter().zip(&other).take_while(same).count());
        let ends = first.iter().rev().zip(other.iter().rev());
        tail = tail
            .min(ends.take_while(same).count())
            .min(other.len() - head);
    }
    tail = tail.min(first.len() - head);
    let (head, tail) = (&first[..head], &first[first.len() - tail..]);
    head.iter().chain(&['\u{2026}']).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{mosaic, wide};
    use super::*;

    #[test]
    fn fold_keeps_small_graph_unfolded() {
        let folded = fold(&mosaic());
        assert_eq!((folded.nodes.len(), folded.edges.len()), (10, 9));
    }

    #[test]
    fn fold_groups_equal_nodes_and_keeps_others_apart() {
        let folded = fold(&wide(10));
        let sizes: Vec<usize> = folded.nodes.iter().map(|node| node.members.len()).collect();
        // Raw, projected, sum, picture; project, add, view.
        assert_eq!(
            sizes.iter().filter(|size| **size == 10).count(),
            3,
            "{sizes:?}"
        );
        assert_eq!((folded.nodes.len(), folded.edges.len()), (7, 6));
        let mut graph = wide(10);
        let mut other = graph.records().next().unwrap().clone();
        other.kernel = "other".into();
        graph.add_record(other);
        let folded = fold(&graph);
        let sizes: Vec<usize> = folded.nodes.iter().map(|node| node.members.len()).collect();
        assert_eq!(
            sizes.iter().filter(|size| **size == 9).count(),
            3,
            "{sizes:?}"
        );
    }

    #[test]
    fn fold_keeps_common_input_apart_from_individual_inputs() {
        let mut graph = wide(10);
        let mut common = graph
            .version(tidemill_model::id::ObjectId(1))
            .unwrap()
            .clone();
        (common.object, common.path) = (
            tidemill_model::id::ObjectId(99),
            "/raw/reference.fits".into(),
        );
        common.current_path = Some(common.path.clone());
        graph.add_version(common);
        let runs: Vec<_> = graph
            .records()
            .filter(|run| run.kernel == "project")
            .cloned()
            .collect();
        for mut run in runs {
            run.inputs
                .push(("reference.fits".into(), tidemill_model::id::ObjectId(99)));
            graph.add_record(run);
        }
        let folded = fold(&graph);
        assert_eq!(folded.nodes.len(), 8, "{folded:?}");
    }

    #[test]
    fn common_name_of_similar_names_is_shortened() {
        assert_eq!(
            common(&["/raw/1.fits", "/raw/12.fits"]),
            "/raw/1\u{2026}.fits"
        );
        assert_eq!(common(&["aa", "a"]), "a\u{2026}");
        assert_eq!(common(&["same", "same"]), "same");
        assert_eq!(common(&["one"]), "one");
        assert_eq!(common(&["ab", "cd"]), "\u{2026}");
    }
}
