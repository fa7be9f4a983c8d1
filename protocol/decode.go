package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
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

// DecodeParams decodes the params of a method or a notification into their type.
// The result shares no memory with raw, except as its type says. The error is
// always an *Error.
func DecodeParams[P any](raw json.RawMessage) (P, error) { return DecodeBulk[P](raw, nil) }

// DecodeBulk is like DecodeParams, for the params of a message that may be binary: data is
// its Message.Data. The result's field of data then points into it.
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

// decodeStruct decodes an object. joined says that data of a binary message takes the place
// of a member.
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
