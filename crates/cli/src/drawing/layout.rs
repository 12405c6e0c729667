//! Positions of the nodes of a picture. Nodes are in layers in the direction of the data, and an edge that crosses a layer has a separate
//! lane in the layer. So no edge is under a box: next to boxes the edge is in its lane, and it bends only between layers.

use super::fold::depths;
use std::collections::BTreeSet;

/// Height of a box, in pixels.
pub(super) const BOX_HEIGHT: usize = 46;
/// Size of the slide that a picture should fit on, in pixels.
pub(super) const SLIDE: (usize, usize) = (1280, 720);
const MARGIN: usize = 16;
/// Number of sweeps that order the layers; more sweeps change little.
const SWEEPS: usize = 8;

/// Direction of the data in a lineage picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraphDirection {
    /// From left to right.
    Right,
    /// From top to bottom.
    Down,
}

/// Geometry of a lineage picture, in pixels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PictureLayout {
    pub(super) way: GraphDirection,
    pub(super) width: usize,
    pub(super) height: usize,
    /// Upper left corner of each node's box.
    pub(super) boxes: Vec<(usize, usize)>,
    /// Route of each edge: its start, the entry into and exit from each of its lanes, and its end.
    pub(super) routes: Vec<Vec<(usize, usize)>>,
}

/// Returns the layout, of both directions, that appears larger on a slide.
pub(super) fn layout(
    nodes: usize,
    edges: &BTreeSet<(usize, usize)>,
    box_width: usize,
) -> PictureLayout {
    let layers = Layers::new(nodes, edges);
    let [right, down] =
        [GraphDirection::Right, GraphDirection::Down].map(|way| layers.placed(way, box_width));
    if fill(&right) >= fill(&down) {
        right
    } else {
        down
    }
}

/// Returns the scale at which a picture fills a slide, in thousandths.
pub(super) fn fill(layout: &PictureLayout) -> usize {
    let scale = |slide: usize, size: usize| slide * 1000 / size.max(1);
    scale(SLIDE.0, layout.width).min(scale(SLIDE.1, layout.height))
}

/// Nodes and lanes of each layer, in their order; lanes are numbered after nodes.
struct Layers {
    nodes: usize,
    layers: Vec<Vec<usize>>,
    /// Path of each edge: node, lanes, node.
    ways: Vec<Vec<usize>>,
}

impl Layers {
    fn new(nodes: usize, edges: &BTreeSet<(usize, usize)>) -> Self {
        let mut depth = depths(nodes, edges);
        // A node without a producer is placed in the layer before its first reader.
        let mut is_source = vec![true; nodes];
        let mut first_reader = vec![usize::MAX; nodes];
        for (from, to) in edges {
            is_source[*to] = false;
            first_reader[*from] = first_reader[*from].min(depth[*to]);
        }
        for at in 0..nodes {
            if is_source[at] && first_reader[at] != usize::MAX {
                depth[at] = first_reader[at].saturating_sub(1);
            }
        }
        let count = depth.iter().max().map_or(0, |last| last + 1);
        let mut layers = vec![Vec::new(); count];
        (0..nodes).for_each(|at| layers[depth[at]].push(at));
        let mut next = nodes;
        let mut ways = Vec::with_capacity(edges.len());
        for (from, to) in edges {
            let mut way = vec![*from];
            for layer in &mut layers[depth[*from]..depth[*to]][1..] {
                layer.push(next);
                way.push(next);
                next += 1;
            }
            way.push(*to);
            ways.push(way);
        }
        let mut layers = Self {
            nodes,
            layers,
            ways,
        };
        layers.order(next);
        layers
    }

    /// Orders every layer by the mean position of its neighbours in the layers before and after, in turn.
    fn order(&mut self, count: usize) {
        let mut near = [vec![Vec::new(); count], vec![Vec::new(); count]];
        for pair in self.ways.iter().flat_map(|way| way.windows(2)) {
            near[0][pair[1]].push(pair[0]);
            near[1][pair[0]].push(pair[1]);
        }
        let mut places = vec![0; count];
        let place = |layer: &[usize], places: &mut Vec<usize>| {
            // The middle of every layer is at the same position.
            let first = count.saturating_sub(layer.len() - 1) * 1000 / 2;
            layer
                .iter()
                .zip(0..)
                .for_each(|(item, at)| places[*item] = first + at * 1000);
        };
        self.layers
            .iter()
            .for_each(|layer| place(layer, &mut places));
        for sweep in 0..SWEEPS {
            let near = &near[sweep % 2];
            let mut order: Vec<usize> = (0..self.layers.len()).collect();
            if sweep % 2 == 1 {
                order.reverse();
            }
            for at in order {
                self.layers[at].sort_by_key(|item| {
                    let sum: usize = near[*item].iter().map(|one| places[*one]).sum();
                    sum.checked_div(near[*item].len()).unwrap_or(places[*item])
                });
                place(&self.layers[at], &mut places);
            }
        }
    }

    fn placed(&self, way: GraphDirection, box_width: usize) -> PictureLayout {
        // Sizes in the direction of the data, and across it.
        let (length, gap, breadth, between, lane) = match way {
            GraphDirection::Right => (box_width, 56, BOX_HEIGHT, 16, 10),
            GraphDirection::Down => (BOX_HEIGHT, 40, box_width, 24, 12),
        };
        let size = |item: usize| if item < self.nodes { breadth } else { lane };
        let total = |layer: &Vec<usize>| -> usize {
            let sizes: usize = layer.iter().map(|item| size(*item)).sum();
            sizes + between * layer.len().saturating_sub(1)
        };
        let widest = self.layers.iter().map(total).max().unwrap_or(0);
        let items = self
            .layers
            .iter()
            .flatten()
            .max()
            .map_or(0, |last| last + 1);
        let mut corners = vec![(0, 0); items];
        for (layer, at) in self.layers.iter().zip(0..) {
            let mut across = MARGIN + (widest - total(layer)) / 2;
            for item in layer {
                corners[*item] = (MARGIN + at * (length + gap), across);
                across += size(*item) + between;
            }
        }
        let turned = |(along, across): (usize, usize)| match way {
            GraphDirection::Right => (along, across),
            GraphDirection::Down => (across, along),
        };
        let route = |items: &Vec<usize>| -> Vec<(usize, usize)> {
            let sides = |item: &usize| {
                let (along, across) = corners[*item];
                let middle = across + size(*item) / 2;
                [turned((along, middle)), turned((along + length, middle))]
            };
            let points: Vec<_> = items.iter().flat_map(sides).collect();
            points[1..points.len() - 1].to_vec()
        };
        let count = self.layers.len();
        let along = 2 * MARGIN + (count * (length + gap)).saturating_sub(gap);
        let (width, height) = turned((along, 2 * MARGIN + widest));
        PictureLayout {
            way,
            width,
            height,
            boxes: corners[..self.nodes].iter().map(|at| turned(*at)).collect(),
            routes: self.ways.iter().map(route).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 200;

    /// Returns a chain, with edges from its first node to all later nodes.
    fn tangle(count: usize) -> BTreeSet<(usize, usize)> {
        let chain = (1..count).map(|at| (at - 1, at));
        let far = (2..count).step_by(2).map(|at| (0, at));
        chain.chain(far).collect()
    }

    #[test]
    fn layout_edges_point_forward_and_avoid_boxes() {
        let edges = tangle(9);
        let layers = Layers::new(9, &edges);
        for way in [GraphDirection::Right, GraphDirection::Down] {
            let layout = layers.placed(way, WIDTH);
            let along = |(x, y): (usize, usize)| if way == GraphDirection::Right { x } else { y };
            for ((from, to), route) in edges.iter().zip(&layout.routes) {
                assert!(along(layout.boxes[*from]) < along(layout.boxes[*to]));
                // Only lanes are next to boxes, and they are straight.
                for lane in route[1..route.len() - 1].chunks(2) {
                    let ((left, top), (right, bottom)) = (lane[0], lane[1]);
                    assert!(left == right || top == bottom, "{lane:?}");
                    for &(x, y) in &layout.boxes {
                        let apart =
                            right <= x || left >= x + WIDTH || bottom <= y || top >= y + BOX_HEIGHT;
                        assert!(apart, "{lane:?} is under the box at {x} {y}");
                    }
                }
                // Between two lanes or boxes there is only the gap.
                for bend in route.chunks(2) {
                    let gap = along(bend[1]) - along(bend[0]);
                    assert_eq!(gap, if way == GraphDirection::Right { 56 } else { 40 });
                }
            }
        }
    }

    #[test]
    fn layout_boxes_never_overlap_and_fit_picture() {
        for way in [GraphDirection::Right, GraphDirection::Down] {
            let layout =
                Layers::new(30, &(1..30).map(|at| (at / 4, at)).collect()).placed(way, WIDTH);
            for (index, &(x, y)) in layout.boxes.iter().enumerate() {
                assert!(x + WIDTH < layout.width && y + BOX_HEIGHT < layout.height);
                for &(other_x, other_y) in &layout.boxes[..index] {
                    assert!(x.abs_diff(other_x) >= WIDTH || y.abs_diff(other_y) >= BOX_HEIGHT);
                }
            }
        }
        let empty = layout(0, &BTreeSet::new(), WIDTH);
        assert!(empty.boxes.is_empty() && empty.width > 0);
    }

    #[test]
    fn layout_of_parallel_branches_has_no_crossing() {
        // Two chains, numbered crosswise.
        let edges = BTreeSet::from([(0, 3), (1, 2), (3, 4), (2, 5)]);
        let layout = Layers::new(6, &edges).placed(GraphDirection::Right, WIDTH);
        let row = |node: usize| layout.boxes[node].1;
        assert_eq!((row(0), row(1)), (row(3), row(2)));
        assert_eq!((row(3), row(2)), (row(4), row(5)));
    }
}
