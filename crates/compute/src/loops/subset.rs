//! Parts of an array of any dimensions: from a start, up to a stop, with a step.

/// Selected indices of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DimensionSpan {
    /// Size of the whole dimension.
    pub(crate) size: usize,
    /// First selected index.
    pub(crate) start: usize,
    /// Distance between selected indices, at least 1.
    pub(crate) step: usize,
    /// Number of selected indices.
    pub(crate) count: usize,
}

/// Copies the part of `from` that `spans` selects. `from` is an array in row-major order of items of `size` bytes (1, 2, 4 or 8); `spans`
/// has the slowest dimension first. The part is passed on in pieces as long as its contiguous parts.
pub(crate) fn subset<E>(
    from: &[u8],
    size: usize,
    spans: &[DimensionSpan],
    take: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let Some((span, inner)) = spans.split_first() else {
        return take(&from[..size]);
    };
    if span.count == 0 {
        return Ok(());
    }
    let stride: usize = inner.iter().map(|span| span.size).product::<usize>() * size;
    let whole = inner.iter().all(|span| span.count == span.size);
    if whole && span.step == 1 {
        return take(&from[span.start * stride..(span.start + span.count) * stride]);
    }
    if inner.is_empty() {
        return match size {
            1 => every::<1, E>(from, *span, take),
            2 => every::<2, E>(from, *span, take),
            4 => every::<4, E>(from, *span, take),
            _ => every::<8, E>(from, *span, take),
        };
    }
    for number in 0..span.count {
        let at = (span.start + number * span.step) * stride;
        if whole {
            take(&from[at..at + stride])?;
        } else {
            subset(&from[at..at + stride], size, inner, take)?;
        }
    }
    Ok(())
}

/// Copies the selected items of `N` bytes of one row, many at a time.
fn every<const N: usize, E>(
    from: &[u8],
    span: DimensionSpan,
    take: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut some = [[0; N]; 512];
    let (items, _) = from.as_chunks::<N>();
    let mut items = items[span.start..]
        .iter()
        .step_by(span.step)
        .take(span.count);
    loop {
        let mut count = 0;
        for (to, item) in some.iter_mut().zip(items.by_ref()) {
            *to = *item;
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        take(some[..count].as_flattened())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span() -> impl Strategy<Value = DimensionSpan> {
        (1_usize..7, 1_usize..4).prop_flat_map(|(size, step)| {
            (0..size).prop_flat_map(move |start| {
                (0..=(size - start).div_ceil(step)).prop_map(move |count| DimensionSpan {
                    size,
                    start,
                    step,
                    count,
                })
            })
        })
    }

    proptest! {
        #[test]
        fn subset_matches_plain_indexing(spans in prop::collection::vec(span(), 1..4), size in prop_oneof![Just(1_usize), Just(2), Just(4), Just(8)]) {
            let items: usize = spans.iter().map(|span| span.size).product();
            let from: Vec<u8> = (0..items * size).map(|byte| u8::try_from(byte % 251).unwrap()).collect();
            let mut got = Vec::new();
            subset::<()>(&from, size, &spans, &mut |piece| {
                got.extend_from_slice(piece);
                Ok(())
            }).unwrap();
            let mut wanted = Vec::new();
            for item in 0..items {
                let mut rest = item;
                let taken = spans.iter().rev().all(|span| {
                    let index = rest % span.size;
                    rest /= span.size;
                    index >= span.start
                        && (index - span.start) % span.step == 0
                        && (index - span.start) / span.step < span.count
                });
                if taken {
                    wanted.extend_from_slice(&from[item * size..(item + 1) * size]);
                }
            }
            prop_assert_eq!(got, wanted);
        }
    }
}
