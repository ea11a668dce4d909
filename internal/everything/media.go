package everything

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"
	"image/png"
)

// redPixel is a PNG image of one red pixel.
func redPixel() []byte {
	img := image.NewRGBA(image.Rect(0, 0, 1, 1))
	img.Set(0, 0, color.RGBA{R: 0xff, A: 0xff})
	var buf bytes.Buffer
	if err := png.Encode(&buf, img); err != nil {
		panic(err) // a bytes.Buffer takes every write, and the image is constant
	}
	return buf.Bytes()
}

// silence is a WAV file (PCM, mono, 8 bits, 8 kHz) with eight samples of silence.
func silence() []byte {
	const rate, samples = 8000, 8
	out := append([]byte(nil), "RIFF"...)
	out = binary.LittleEndian.AppendUint32(out, 36+samples)
	out = append(out, "WAVEfmt "...)
	out = binary.LittleEndian.AppendUint32(out, 16) // size of the format chunk
	out = binary.LittleEndian.AppendUint16(out, 1)  // PCM
	out = binary.LittleEndian.AppendUint16(out, 1)  // channels
	out = binary.LittleEndian.AppendUint32(out, rate)
	out = binary.LittleEndian.AppendUint32(out, rate) // bytes per second
	out = binary.LittleEndian.AppendUint16(out, 1)    // bytes per frame
	out = binary.LittleEndian.AppendUint16(out, 8)    // bits per sample
	out = append(out, "data"...)
	out = binary.LittleEndian.AppendUint32(out, samples)
	return append(out, bytes.Repeat([]byte{0x80}, samples)...) // 0x80 is the zero line
}
