// Go's client as it is by default.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	for _, path := range os.Args[2:] {
		file, err := os.Open(path)
		if err != nil {
			panic(err)
		}
		answer, err := http.Post(os.Args[1], "application/json", file)
		if err != nil {
			panic(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			panic(err)
		}
		fmt.Println(answer.StatusCode, string(body))
	}
}
