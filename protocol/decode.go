package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// The types of params say how to decode them. encoding/json does not suffice: it accepts
// "ProcessId" for "processId", does not report a missing member, and does not distinguish
// null from a zero value.
//
// A member is required, unless its field is a pointer or a json.RawMessage: then
// it may be absent or null. The tag wire changes that:
//
//	optional    absent and null stand for the zero value
//	optional=x  absent and null stand for x
//	absent=x    absent stands for x, null is refused
//	or=name     an older name of the member
//	identifier  the string has at most MaxIdentifierBytes
//	enum=a|b    the string is one of these
//	bulk        the data of a binary message takes the member's place; see Bulk
//	-           the type's decodeFields decodes it
type wireField struct {
	index      []int
	name       string
	older      string
	required   bool
	null       bool // null stands for the default
	absent     string
	identifier bool
	bulk       bool
	enum       []string
}

// A fieldsDecoder decodes itself from the members of an object, where tags are not
// enough.
type fieldsDecoder interface{ decodeFields(f *fields) }

// A checker checks the members together.
type checker interface{ check() error }

// A valueDecoder decodes itself from a value that is not an object.
type valueDecoder interface {
	decode(raw json.RawMessage) error
}

// DecodeParams decodes the params of a method or a notification. The result shares no memory
// with raw, unless its type documents it. The error is always an *Error.
func DecodeParams[P any](raw json.RawMessage) (P, error) { return DecodeBulk[P](raw, nil) }

// DecodeBulk is like DecodeParams, for the params of a message that may be binary. data is
// its Message.Data, into which the data field of the result then points.
func DecodeBulk[P any](raw json.RawMessage, data []byte) (P, error) {
	p := new(P)
	var err error
	if d, ok := any(p).(valueDecoder); ok {
		err = d.decode(raw)
	} else {
		err = decodeStruct(raw, data != nil, reflect.ValueOf(p).Elem())
	}
	if err == nil && data != nil {
		err = join(p, data)
	}
	if err == nil {
		return *p, nil
	}
	if coded, ok := errors.AsType[*Error](err); ok {
		return *p, coded
	}
	return *p, Errorf(CodeInvalidParams, "invalid params: %s", err)
}

// decodeStruct decodes an object. joined is true if the data of a binary message replaces the
// bulk member.
func decodeStruct(raw json.RawMessage, joined bool, v reflect.Value) error {
	f, err := fieldsOf(raw)
	if err != nil {
		return err
	}
	f.joined = joined
	if d, ok := v.Addr().Interface().(fieldsDecoder); ok {
		d.decodeFields(f)
	} else {
		f.fill(v)
	}
	return f.err
}

// fields are the members of one object. They keep the first error, so that a
// decoder can be written as a list of its members. Names are compared exactly.
type fields struct {
	members []member
	joined  bool // data of a binary message takes the place of a member
	err     error
	space   [12]member // of most objects
}

// fieldsOf splits raw, which must be an object; an absent or null raw is an error.
// raw has been validated as part of its message.
func fieldsOf(raw json.RawMessage) (*fields, error) {
	if err := expect(raw, "an object"); err != nil {
		return nil, err
	}
	f := new(fields)
	var err error
	f.members, err = splitObject(raw, f.space[:0])
	return f, err
}

// get returns the value of name, nil when it is absent.
func (f *fields) get(name string) json.RawMessage {
	for i := range f.members {
		if string(f.members[i].name) == name {
			return f.members[i].value
		}
	}
	return nil
}

// required returns the value of name. Its absence is an error.
func (f *fields) required(name string) json.RawMessage {
	raw := f.get(name)
	if raw == nil {
		f.fail(missing(name))
	}
	return raw
}

// optional returns the value of name, nil when it is absent or null.
func (f *fields) optional(name string) json.RawMessage {
	raw := f.get(name)
	if isNull(raw) {
		return nil
	}
	return raw
}

// fail records the first error.
func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// parse decodes raw, the value of name, unless it is nil, and keeps the error.
func parse[T any](f *fields, name string, raw json.RawMessage, decode func(json.RawMessage) (T, error)) (v T) {
	if raw == nil || f.err != nil {
		return v
	}
	v, err := decode(raw)
	f.fail(at(name, err))
	return v
}

func (f *fields) string(name string) string {
	return parse(f, name, f.required(name), decodeString)
}

// choice returns a required string that must be one of those known.
func (f *fields) choice(name string, known ...string) string {
	return parse(f, name, f.required(name), func(raw json.RawMessage) (string, error) {
		s, err := decodeString(raw)
		if err == nil {
			err = oneOf(s, known...)
		}
		return s, err
	})
}

// optionalString distinguishes absent or null (nil) from empty.
func (f *fields) optionalString(name string) *string {
	raw := f.optional(name)
	if raw == nil {
		return nil
	}
	s := parse(f, name, raw, decodeString)
	return &s
}

// boolOr refuses null, as the protocol does where a boolean has a default.
func (f *fields) boolOr(name string, absent bool) bool {
	raw := f.get(name)
	if raw == nil {
		return absent
	}
	return parse(f, name, raw, decodeBool)
}

// optionalBool lets null stand for absence.
func (f *fields) optionalBool(name string, absent bool) bool {
	raw := f.optional(name)
	if raw == nil {
		return absent
	}
	return parse(f, name, raw, decodeBool)
}

func (f *fields) integer(name string) int64 {
	return parse(f, name, f.required(name), func(raw json.RawMessage) (int64, error) {
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			return 0, expected("a whole number", raw)
		}
		return n, nil
	})
}

// into decodes the members that the fields of a struct name.
func (f *fields) into(p any) { f.fill(reflect.ValueOf(p).Elem()) }

func (f *fields) fill(v reflect.Value) {
	wire := wireFields(v.Type())
	for i := range wire {
		w := &wire[i]
		raw := f.get(w.name)
		if w.older != "" && (raw == nil || w.null && isNull(raw)) {
			if older := f.get(w.older); older != nil {
				raw = older
			}
		}
		switch field := v.FieldByIndex(w.index); {
		case w.bulk && f.joined:
			if raw != nil {
				f.fail(at(w.name, errors.New("a binary message carries this as data, not in its JSON")))
			}
		case raw == nil && w.required:
			f.fail(missing(w.name))
		case raw != nil && !(w.null && isNull(raw)):
			f.fail(at(w.name, w.decode(raw, field)))
		case field.Kind() == reflect.Bool:
			field.SetBool(w.absent == "true")
		case field.Kind() == reflect.String:
			field.SetString(w.absent)
		}
		if f.err != nil {
			return
		}
	}
	if c, ok := v.Addr().Interface().(checker); ok {
		f.fail(c.check())
	}
}

// decode decodes the value of a member into its field.
func (w *wireField) decode(raw json.RawMessage, field reflect.Value) (err error) {
	switch p := field.Addr().Interface().(type) {
	case *string:
		if w.identifier {
			*p, err = decodeIdentifier(raw)
		} else if *p, err = decodeString(raw); err == nil {
			err = oneOf(*p, w.enum...)
		}
	case *bool:
		*p, err = decodeBool(raw)
	case *uint64:
		*p, err = decodeUnsigned(raw)
	case *uint16:
		*p, err = decodeDimension(raw)
	case *float64:
		*p, err = decodeFloat(raw)
	case *[]byte:
		*p, err = decodeBase64(raw)
	case *[]string:
		*p, err = decodeList(raw, decodeString)
	case *map[string]string:
		*p, err = decodeStringMap(raw)
	case *json.RawMessage:
		*p = bytes.Clone(raw)
	case valueDecoder:
		err = p.decode(raw)
	default:
		err = w.decodeKind(raw, field)
	}
	return err
}

func (w *wireField) decodeKind(raw json.RawMessage, field reflect.Value) error {
	switch field.Kind() {
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
		return w.decode(raw, field.Elem())
	case reflect.Struct:
		return decodeStruct(raw, false, field)
	case reflect.Slice:
		items, err := decodeItems(raw)
		if err != nil {
			return err
		}
		field.Set(reflect.MakeSlice(field.Type(), len(items), len(items)))
		for i, item := range items {
			if err := w.decode(item, field.Index(i)); err != nil {
				return at(index(i), err)
			}
		}
		return nil
	case reflect.String:
		s, err := decodeString(raw)
		if err != nil {
			return err
		}
		field.SetString(s)
		return oneOf(s, w.enum...)
	}
	panic("protocol: no decoder for " + field.Type().String())
}

var knownFields sync.Map // of []wireField, by reflect.Type

// wireFields returns how to decode the fields of a struct and of its embedded structs.
func wireFields(t reflect.Type) []wireField {
	if known, ok := knownFields.Load(t); ok {
		return known.([]wireField)
	}
	var all []wireField
	for field := range t.Fields() {
		if field.Anonymous {
			for _, w := range wireFields(field.Type) {
				w.index = append([]int{field.Index[0]}, w.index...)
				all = append(all, w)
			}
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		tag := field.Tag.Get("wire")
		if name == "" || name == "-" || tag == "-" {
			continue
		}
		all = append(all, newWireField(field, name, tag))
	}
	knownFields.Store(t, all)
	return all
}

func newWireField(field reflect.StructField, name, tag string) wireField {
	w := wireField{index: field.Index, name: name, required: true}
	if field.Type.Kind() == reflect.Pointer || field.Type == reflect.TypeFor[json.RawMessage]() {
		w.required, w.null = false, true
	}
	for option := range strings.SplitSeq(tag, ",") {
		option, value, _ := strings.Cut(option, "=")
		switch option {
		case "":
		case "optional":
			w.required, w.null, w.absent = false, true, value
		case "absent":
			w.required, w.absent = false, value
		case "or":
			w.older = value
		case "bulk":
			w.bulk = true
		case "identifier":
			w.identifier = true
		case "enum":
			w.enum = strings.Split(value, "|")
		default:
			panic("protocol: unknown option " + option + " of " + name)
		}
	}
	return w
}
