//! Assembles bytes of a file from the bytes of its parts, one window at a time.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use std::future::Future;
use std::ops::Range;
use tidemill_model::layout::Layout;

/// Maximum number of concurrent requests of one window.
const REQUESTS: usize = 16;

/// Returns the bytes of `range`, which is within the file. The function calls `fetch` concurrently for bytes of parts; `fetch` may return
/// fewer bytes. Missing bytes at the end, and ranges that were never written, are zeros.
///
/// # Errors
/// The first error of `fetch`.
pub async fn window<F, E>(
    layout: &Layout,
    range: Range<u64>,
    fetch: impl Fn(usize, Range<u64>) -> F,
) -> Result<Bytes, E>
where
    F: Future<Output = Result<Bytes, E>>,
{
    let ask = |(part, span): (usize, Range<u64>)| {
        let (start, fetched) = (span.start, fetch(part, span));
        async move { Ok((part, start, fetched.await?)) }
    };
    let spans = stream::iter(layout.spans(range.clone()).into_iter().map(ask));
    let spans: Vec<(usize, u64, Bytes)> = spans.buffered(REQUESTS).try_collect().await?;
    let length = usize::try_from(range.end - range.start).unwrap_or(0);
    if let ([(_, _, bytes)], 1) = (&spans[..], layout.segments(range.clone()).take(2).count())
        && bytes.len() == length
    {
        return Ok(bytes.clone());
    }
    let mut window = BytesMut::with_capacity(length);
    for segment in layout.segments(range) {
        let length = usize::try_from(segment.length).unwrap_or(0);
        let end = window.len() + length;
        let there = segment.at.and_then(|at| {
            // The spans are in the order of the parts, and of their bytes.
            let is_before =
                |(part, start, _): &(usize, u64, Bytes)| (*part, *start) <= (at.part, at.offset);
            let before = &spans[..spans.partition_point(is_before)];
            let (_, start, bytes) = before.last().filter(|(part, ..)| *part == at.part)?;
            let rest = bytes.get(usize::try_from(at.offset - start).ok()?..)?;
            Some(rest.get(..length).unwrap_or(rest))
        });
        window.extend_from_slice(there.unwrap_or_default());
        // Bytes that were never written.
        window.resize(end, 0);
    }
    Ok(window.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_model::id::{NodeId, ObjectId};
    use tidemill_model::layout::{Extent, Extents, Part, PartPosition, StripedLayout};

    fn part(object: u64, size: u64) -> Part {
        Part::on(ObjectId(object), size, NodeId(0))
    }

    /// Returns the test byte at an offset of a part: each byte shows its location, and bytes after the part's end are missing.
    fn byte(part: usize, offset: u64) -> u8 {
        u8::try_from((part as u64 * 101 + offset * 7) % 251).unwrap()
    }

    async fn read(layout: &Layout, range: Range<u64>) -> Vec<u8> {
        let fetch = |part: usize, span: Range<u64>| {
            let end = span.end.min(layout.parts()[part].size);
            let bytes: Vec<u8> = (span.start..end).map(|at| byte(part, at)).collect();
            async move { Ok::<Bytes, ()>(bytes.into()) }
        };
        window(layout, range, fetch).await.unwrap().to_vec()
    }

    #[tokio::test]
    async fn window_returns_bytes_for_any_layout() {
        let mut extents = Extents::with_parts(vec![part(1, 60), part(2, 30)]);
        for (offset, length, part, within) in [(10, 40, 0, 0), (90, 20, 0, 40), (30, 30, 1, 0)] {
            let at = PartPosition {
                part,
                offset: within,
            };
            extents.put(Extent { offset, length, at }).unwrap();
        }
        extents.set_size(130);
        // The second part is shorter than its place: its end was never written.
        let parts = vec![part(1, 8192), part(2, 100), part(3, 4096)];
        let layouts = [
            Layout::Whole(part(1, 1000)),
            Layout::Extents(extents),
            Layout::Striped(StripedLayout {
                unit: 4096,
                size: 4 * 4096,
                parts,
            }),
        ];
        for layout in layouts {
            let whole: Vec<u8> = layout
                .segments(0..layout.size())
                .flat_map(|segment| {
                    let layout = &layout;
                    (0..segment.length).map(move |within| match segment.at {
                        Some(at) if at.offset + within < layout.parts()[at.part].size => {
                            byte(at.part, at.offset + within)
                        }
                        _ => 0,
                    })
                })
                .collect();
            let step = layout.size() / 13 + 1;
            for start in (0..layout.size()).step_by(usize::try_from(step).unwrap()) {
                for end in [start, start + 1, start + step, layout.size()] {
                    let end = end.min(layout.size());
                    let place = |at: u64| usize::try_from(at).unwrap();
                    let expected = &whole[place(start)..place(end)];
                    assert_eq!(read(&layout, start..end).await, expected, "{start}..{end}");
                }
            }
        }
    }
}
