//! Frames in a stream: a length of 4 bytes, big-endian, and so many bytes.

/// Bytes of a length.
pub(super) const LENGTH: usize = 4;

/// Finds the frames of a stream. A whole frame is looked at where it was read; only one that was read in part is put together.
#[derive(Debug)]
pub(super) struct Frames {
    /// A frame that was begun; allocated when there is one.
    begun: Box<[u8]>,
    filled: usize,
    longest: usize,
}

impl Frames {
    /// Of frames of 1 to `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self { begun: Box::default(), filled: 0, longest }
    }

    /// Room for the rest of a frame that was begun; nothing if none was.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        let need = self.need();
        self.begun.get_mut(self.filled..need).unwrap_or_default()
    }

    /// So many bytes were put into [`Frames::rest`].
    pub(super) fn placed(&mut self, n: usize) {
        self.filled += n;
    }

    /// Bytes of the frame that was begun, with its length; of the length alone as long as that is not known.
    fn need(&self) -> usize {
        match (self.filled, self.begun.first_chunk()) {
            (0, _) => 0,
            (1..LENGTH, _) | (_, None) => LENGTH,
            (_, Some(length)) => LENGTH + self.length(*length).unwrap_or_default(),
        }
    }

    fn length(&self, bytes: [u8; LENGTH]) -> Result<usize, u32> {
        let length = u32::from_be_bytes(bytes);
        if (1..=self.longest).contains(&(length as usize)) { Ok(length as usize) } else { Err(length) }
    }

    fn begin(&mut self, bytes: &[u8]) {
        if self.begun.is_empty() {
            self.begun = vec![0; LENGTH + self.longest].into();
        }
        self.begun[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    /// Gives each frame that is whole with `bytes` to `on`, or a length that no frame has, behind which nothing can be found.
    ///
    /// # Errors
    /// Those of `on`, which must return one for such a length.
    pub(super) fn feed<E>(
        &mut self,
        mut bytes: &[u8],
        mut on: impl FnMut(Result<&[u8], u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            if self.filled > 0 {
                if self.filled >= LENGTH
                    && let Some(head) = self.begun.first_chunk()
                    && let Err(wrong) = self.length(*head)
                {
                    return on(Err(wrong));
                }
                let need = self.need();
                let (more, rest) = bytes.split_at(bytes.len().min(need - self.filled));
                self.begin(more);
                bytes = rest;
                if self.filled < need {
                    return Ok(());
                }
                if need > LENGTH {
                    on(Ok(&self.begun[LENGTH..need]))?;
                    self.filled = 0;
                }
                continue;
            }
            let Some((head, rest)) = bytes.split_first_chunk() else {
                self.begin(bytes);
                return Ok(());
            };
            let length = match self.length(*head) {
                Ok(length) => length,
                Err(wrong) => return on(Err(wrong)),
            };
            match rest.split_at_checked(length) {
                Some((frame, rest)) => {
                    on(Ok(frame))?;
                    bytes = rest;
                }
                None => {
                    self.begin(bytes);
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
        frames.iter().flat_map(|f| [&(f.len() as u32).to_be_bytes()[..], f].concat()).collect()
    }

    /// Reads `bytes` in pieces as the port does: into what was begun, then into a buffer.
    fn read(bytes: &[u8], longest: usize, pieces: &[usize]) -> (Vec<Vec<u8>>, Option<u32>) {
        let (mut frames, mut found, mut wrong) = (Frames::new(longest), Vec::new(), None);
        let (mut left, mut pieces) = (bytes, pieces.iter().cycle());
        while !left.is_empty() && wrong.is_none() {
            let n = left.len().min(*pieces.next().unwrap());
            let (piece, rest) = left.split_at(n);
            left = rest;
            let begun = frames.rest();
            let placed = n.min(begun.len());
            begun[..placed].copy_from_slice(&piece[..placed]);
            frames.placed(placed);
            let fed = frames.feed(&piece[placed..], |frame| match frame {
                Ok(frame) => {
                    found.push(frame.to_vec());
                    Ok(())
                }
                Err(length) => Err(length),
            });
            wrong = fed.err();
        }
        (found, wrong)
    }

    proptest! {
        #[test]
        fn frames_come_out_whole_however_the_stream_is_cut(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..20),
            pieces in prop::collection::vec(1..70_usize, 1..20),
        ) {
            prop_assert_eq!(read(&stream(&frames), 40, &pieces), (frames, None));
        }

        #[test]
        fn any_bytes_are_frames_or_a_wrong_length(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0_u8), 1 => any::<u8>()], 0..200),
            pieces in prop::collection::vec(1..70_usize, 1..20),
        ) {
            let (found, _) = read(&bytes, 64, &pieces);
            prop_assert!(found.iter().all(|f| (1..=64).contains(&f.len())));
        }
    }

    #[test]
    fn a_length_that_no_message_has_is_told() {
        for length in [0, 101, u32::MAX] {
            let bytes = [&stream(&[vec![7; 100]])[..], &length.to_be_bytes(), &[0; 10]].concat();
            for piece in [1, 3, 1000] {
                assert_eq!(read(&bytes, 100, &[piece]), (vec![vec![7; 100]], Some(length)));
            }
        }
    }
}
