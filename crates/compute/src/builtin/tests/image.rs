use super::*;

#[test]
fn edges_kernel_writes_image_in_format_of_input() {
    let mut pixels = vec![0; 6 * 4];
    pixels
        .iter_mut()
        .skip(3)
        .step_by(6)
        .for_each(|pixel| *pixel = 50);
    let head = b"P5 # a line\n6 4\n255\n";
    let pgm = [head.to_vec(), pixels.clone()].concat();
    let mut given = Vec::new();
    run_builtin(
        "edges",
        &[],
        &files(std::slice::from_ref(&pgm)).names,
        &mut given,
    )
    .unwrap();
    assert_eq!(given[..head.len()], head[..]);
    // On both sides of a line of 50 the gradient is 4 × 50; on the line the sides cancel.
    assert_eq!(given[head.len()..][..6], [0, 0, 200, 0, 200, 0]);
    let mut raw = Vec::new();
    run_builtin(
        "edges",
        &strings(&["width=6"]),
        &files(&[pixels]).names,
        &mut raw,
    )
    .unwrap();
    assert_eq!(raw, given[head.len()..]);
    let mut canny = Vec::new();
    let args = strings(&["method=canny", "low=50", "high=100"]);
    run_builtin(
        "edges",
        &args,
        &files(std::slice::from_ref(&pgm)).names,
        &mut canny,
    )
    .unwrap();
    assert!(
        canny[head.len()..]
            .iter()
            .all(|pixel| [0, 255].contains(pixel))
    );
    for (args, part, words) in [
        (
            vec![],
            b"P6 1 1 255\n...".to_vec(),
            "no complete binary PGM",
        ),
        (
            vec![],
            b"P5 2 2 255\n...".to_vec(),
            "no complete binary PGM",
        ),
        (
            vec![],
            b"P5 99999999999 99999999999 255\n".to_vec(),
            "no complete binary PGM",
        ),
        (vec!["width=5"], vec![0; 6], "divisor of 6"),
        (vec!["width=0"], vec![0; 6], "divisor of 6"),
        (vec!["method=canny", "low=-1"], pgm, "0 to 32767"),
    ] {
        let error = run("edges", &args, &[part]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
